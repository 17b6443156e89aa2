"""Facts over a real socket: transactions by range and state, the broker's status, and ranges."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.native import calls
from escrowmq.broker.native import facts as native_facts
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.native.frames import encode_call, read_answer
from escrowmq.protocol.native.headers import (
    HoldManyHeader,
    ListBatchesHeader,
    ListTransactionsHeader,
    NativeAnswer,
    NativeHeader,
    PlanHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import BatchRow, TransactionRow, VerdictRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.testing import ManualClock
from escrowmq.transaction.commands import Park, Resume
from escrowmq.transaction.records import NEVER
from tests.unit.broker.asking import producer
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent, sent_in
from tests.unit.broker.wire import DEADLINE_S, SEND, T0, Peer, facts, half, serving

LIST = NativeCode.LIST_TRANSACTIONS


def listing(**fields: object) -> ListTransactionsHeader:
    return ListTransactionsHeader(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", list(RowForm))
async def test_undecided_transactions_come_with_all_that_the_rules_need(
    tmp_path: Path, form: RowForm
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await producer(server, "p1")
        await hold(peer, "a", sent(b"1"), sent(b"2"), ledger="uuid", allowed_ms=9)
        await hold(peer, "a", sent(b"3"), number=1, ledger="uuid", allowed_ms=9)
        await hold(peer, "b", producer_group="nobody")
        await peer.ask(SEND, half("c"))
        await hold(peer, "decided")
        await decide(peer, 5)
        clock.advance(seconds=10)
        answer = await ask(peer, LIST, listing(form=form, with_ids=True))
        assert (answer.header.now_ms, answer.header.cursor) == (T0 + 10_000, None)
        assert answer.header.row_count == 3
        assert answer.rows[0] == TransactionRow(
            half_offset=0,
            head=0,
            transaction_id="a",
            producer_group="pay",
            ledger="uuid",
            allowed_ms=9,
            state=0,
            stored_at_ms=T0,
            age_ms=10_000,
            wait_ms=-4_000,
            checks_sent=0,
            message_count=3,
            producers_online=1,
        )
        assert [row.transaction_id for row in answer.rows] == ["a", "b", "c"]
        assert [row.producers_online for row in answer.rows] == [1, 0, 1]
        without = await ask(peer, LIST, listing(form=form))
        assert [row.transaction_id for row in without.rows] == [None] * 3


async def test_parked_ones_are_never_due_and_age_anew_once_resumed(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a")
        await server.broker.writer.submit(Park(half_offset=0, reason="test"))
        clock.advance(seconds=5)
        (row,) = (await ask(peer, LIST, listing(states="parked"))).rows
        assert (row.state, row.wait_ms) == (3, NEVER - clock.now_ms())
        assert (await ask(peer, LIST, listing(states="prepared"))).rows == []
        await server.broker.writer.submit(Resume(half_offset=0, by="ops"))
        clock.advance(seconds=1)
        (row,) = (await ask(peer, LIST)).rows
        assert (row.state, row.age_ms) == (0, 1_000)


async def test_decided_ones_are_listed_when_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in "ab":
            await hold(peer, name)
        await decide(peer, 0)
        await decide(peer, 1, "rollback")
        rows = (await ask(peer, LIST, listing(states="committed, rolled_back"))).rows
        assert [(row.half_offset, row.state) for row in rows] == [(0, 1), (1, 2)]


async def test_ranges_and_pages_hold_everything_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent_in(f"t{number}") for number in range(25)]
        await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)
        found = await all_rows(peer, LIST, listing(start=3, end=20, limit=4))
        assert [row.half_offset for row in found] == list(range(3, 20))


async def test_ids_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_facts, "IDS_AT_ONCE", 2)
    monkeypatch.setattr(native_facts, "PAGE_S_MAX", 0)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in "abc":
            await hold(peer, name)
        first = await ask(peer, LIST, listing(with_ids=True))
        assert (len(first.rows), first.header.cursor) == (2, "2")
        found = await all_rows(peer, LIST, listing(with_ids=True))
        assert [row.transaction_id for row in found] == ["a", "b", "c"]


@pytest.mark.parametrize("states", ["", "prepared,unheard of", "0"])
async def test_a_state_that_is_none_is_refused(tmp_path: Path, states: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match="state_unknown"):
            await ask(peer, LIST, listing(states=states))


async def test_a_cursor_that_the_broker_did_not_make_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(ProtocolViolation, match="cursor_malformed"):
            await ask(peer, LIST, listing(cursor="later"))


async def test_no_fact_leaves_before_it_is_durable(tmp_path: Path) -> None:
    """A question in the same packet as a decision never sees a decision that is not durable."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        verdict = VerdictRow(half_offset=0, verdict="commit", state=0, checks_sent=0, reason=None)
        peer.write(
            encode_call(NativeCode.OBEY_VERDICTS, 1, rows=[verdict])
            + encode_call(LIST, 2)
            + encode_call(NativeCode.STATUS, 3)
        )
        for opaque, code in ((1, NativeCode.OBEY_VERDICTS), (2, LIST), (3, NativeCode.STATUS)):
            frame = await peer.until(lambda one, opaque=opaque: one.opaque == opaque)  # type: ignore[misc]
            answer = read_answer(code, frame)
            if code is LIST and answer.rows:
                # The question came before the batch with the decision.
                assert [row.half_offset for row in answer.rows] == [0]
            elif code is LIST:
                # The packet came in two pieces, and the decision became durable between them.
                assert server.broker.store.log.flushed == server.broker.store.log.end
        assert (await ask(peer, LIST)).rows == []


async def test_status_tells_what_is_undecided_and_by_which_policy_it_is_checked(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, policy={"checks_max": 7, "check_backoff": 1.5}) as server:
        peer = await producer(server, "p1")
        for name, group in (("a", "pay"), ("b", "nobody"), ("c", "pay"), ("d", "pay")):
            await hold(peer, name, producer_group=group)
        await decide(peer, 2)
        await server.broker.writer.submit(Park(half_offset=3, reason="test"))
        clock.advance(seconds=3)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.undecided, told.parked, told.oldest_undecided_age_ms) == (2, 1, 3_000)
        assert told.undecided_without_producer == 1
        assert (told.checks_max, told.check_backoff) == (7, 1.5)
        assert (told.connections, told.producers_online, told.consumers_online) == (1, 1, 0)
        assert (told.half_start, told.half_end, told.queues) == (0, 4, 1)
        assert (told.log_start, told.log_end) == (0, server.broker.store.durable_end)
        assert told.broker_address == server.broker_address
        assert told.pipeline_away_since_ms == T0
        assert told.now_ms == T0 + 3_000


async def test_status_gives_every_field_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, given = calls.Call.answer, set[str]()

    def noted(call: calls.Call[NativeHeader], **fields: Any) -> None:  # noqa: ANN401 - of the answer
        given.update(fields)
        answer(call, **fields)

    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        monkeypatch.setattr(calls.Call, "answer", noted)
        await ask(peer, NativeCode.STATUS)
    own = set(StatusAnswer.__struct_fields__) - set(NativeAnswer.__struct_fields__)
    assert given == own


async def test_ranges_are_planned_for_readers_at_the_same_time(tmp_path: Path) -> None:
    async with serving(tmp_path, store={"chunk_rows": 8}) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent_in(f"t{number}") for number in range(30)]
        await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)
        plan = (await ask(peer, NativeCode.PLAN_RANGES, PlanHeader(weight=10))).rows
        assert len(plan) > 2
        found = []
        for one in plan:
            found += await all_rows(peer, LIST, listing(start=one.start, end=one.end))
        assert [row.half_offset for row in found] == list(range(30))
        (whole,) = (await ask(peer, NativeCode.PLAN_RANGES)).rows
        assert (whole.start, whole.end, whole.weight) == (0, 30, 30)


async def test_ranges_of_the_log_cover_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        (start,) = (await ask(peer, NativeCode.PLAN_RANGES, PlanHeader(what="log"))).rows
        assert (start.start, start.end) == (0, server.broker.store.durable_end), "only the epoch"
        for name in "abc":
            await hold(peer, name)
        settled = server.broker.store.durable_end
        (whole,) = (await ask(peer, NativeCode.PLAN_RANGES, PlanHeader(what="log"))).rows
        assert (whole.start, whole.end) == (0, settled)
        small = (await ask(peer, NativeCode.PLAN_RANGES, PlanHeader(what="log", weight=100))).rows
        assert [one.start for one in small] == list(range(0, settled, 100))
        assert small[-1].end == settled


async def test_a_plan_of_something_else_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match="plan_unknown"):
            await ask(peer, NativeCode.PLAN_RANGES, PlanHeader(what="weather"))


async def test_no_request_waits_while_arrow_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        imported = threading.Event()
        monkeypatch.setattr(calls, "is_loaded", lambda form: form is RowForm.MSGPACK)
        monkeypatch.setattr(calls, "load_arrow", lambda: imported.wait(DEADLINE_S))
        peer.write(encode_call(LIST, 1, listing(form=RowForm.ARROW)) + encode_call(LIST, 2))
        other = await peer.until(lambda one: one.opaque == 2)
        assert len(read_answer(LIST, other).rows) == 1
        imported.set()
        waited = await peer.until(lambda one: one.opaque == 1)
        assert read_answer(LIST, waited).rows == read_answer(LIST, other).rows


async def test_wrong_arrow_rows_are_refused_after_the_import_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        monkeypatch.setattr(calls, "is_loaded", lambda _form: False)
        answer = await peer.ask(NativeCode.SEND_MANY, NativeHeader(form=RowForm.ARROW), b"garbage")
        assert facts(answer)["error"] == "rows_malformed"


# Batches.


async def test_decided_batches_are_listed_by_app_query_and_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        batches: list[dict[str, Any]] = [
            {"app_id": "b", "query_id": "q", "batch_number": 4},
            {"app_id": "b", "query_id": "q", "batch_number": 7},
            {"app_id": "b", "query_id": "p", "batch_number": 9},
            {"app_id": "a", "query_id": "u1", "batch_name": "x"},
            {"app_id": "a", "query_id": "u2", "batch_name": "y"},
        ]
        places = []
        for batch in batches:
            places.append(server.broker.store.log.end)
            await ask(peer, NativeCode.DECIDE_BATCH, DecideBatchHeader(by="driver", **batch))
        expected = [
            BatchRow(
                app_id=app,
                query_id=query,
                batch_number=number,
                batch_name=name,
                log_offset=at,
            )
            for app, query, number, name, at in (
                ("a", "u1", None, "x", places[3]),
                ("a", "u2", None, "y", places[4]),
                ("b", "p", 9, None, None),
                ("b", "q", 7, None, None),
            )
        ]
        for form in RowForm:
            for limit in (0, 1, 3):
                header = ListBatchesHeader(form=form, limit=limit)
                assert await all_rows(peer, NativeCode.LIST_BATCHES, header) == expected
        only = ListBatchesHeader(app_id="b")
        assert (await ask(peer, NativeCode.LIST_BATCHES, only)).rows == expected[2:]
        with pytest.raises(ProtocolViolation, match="cursor_malformed"):
            await ask(peer, NativeCode.LIST_BATCHES, ListBatchesHeader(cursor="[1]"))
