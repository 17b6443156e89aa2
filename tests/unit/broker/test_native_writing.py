"""Bulk requests over a real socket: half messages, messages and decisions, answered truthfully."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.write import bulk
from escrowmq.model.errors import ProtocolViolation, RequestRefused, Unavailable
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.headers import ByHeader, HoldManyHeader, NativeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import AttemptRow, DecisionRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import encode_request
from escrowmq.transaction.states import State
from tests.unit.broker.native_peer import ask, decide, hold, sent, sent_in
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    facts,
    half,
    serving,
    visible,
)

FORMS = list(RowForm)


def decision(half_offset: int, resolution: str = "commit", **fields: object) -> DecisionRow:
    values = {"producer_group": None, "log_offset": None, **fields}
    return DecisionRow(half_offset=half_offset, resolution=resolution, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
async def test_halves_of_one_transaction_become_visible_together(
    tmp_path: Path, form: RowForm
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"1"), sent(b"2", topic="stock"), sent(b"3", queue_id=-1)]
        held = await hold(peer, "t1", *rows, form=form)
        assert (held.header.half_offset, held.header.is_repeated) == (0, False)
        assert [row.half_offset for row in held.rows] == [0, 1, 2]
        assert visible(server) == []
        header = ByHeader(form=form, by="me")
        (done,) = (await ask(peer, NativeCode.DECIDE_MANY, header, [decision(1)])).rows
        assert (done.decided, done.decided_by, done.decided_at_ms) == ("committed", "me", T0)
        assert [one.body for one in visible(server, "stock")] == [b"2"]
        assert b"3" in [one.body for one in visible(server, queue_id=held.rows[2].queue_id)]


async def test_a_half_in_bulk_looks_like_that_of_a_stock_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        stock = await peer.ask(SEND, half("k1", KEYS="a b", TAGS="x"), b"body")
        await peer.ask(END, ending(stock, COMMIT))
        await hold(peer, "t2", sent(UNIQ_KEY="k2", KEYS="a b", TAGS="x"))
        await decide(peer, 1)
        first, second = visible(server)
        pairs = parse_properties(second.properties)
        assert pairs == {
            **parse_properties(first.properties),
            "UNIQ_KEY": "k2",
            "__transactionId__": "t2",
        }
        assert (first.flag, first.sys_flag, first.body) == (
            second.flag,
            second.sys_flag,
            second.body,
        )
        assert (first.born_host, first.born_at_ms) == (second.born_host, second.born_at_ms)


async def test_properties_of_a_half_cannot_change_its_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(PGROUP="other", TRAN_MSG="false"))
        await decide(peer, 0)
        pairs = parse_properties(visible(server)[0].properties)
        assert (pairs["PGROUP"], pairs["TRAN_MSG"]) == ("pay", "true")


async def test_numbered_requests_are_answered_again_and_a_gap_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"1", queue_id=-1), sent(b"2", queue_id=-1)]
        first = await hold(peer, "t", *rows)
        # A repeated request gets the same queues as before.
        again = await hold(peer, "t", *rows)
        assert again.header.is_repeated
        assert again.rows == first.rows
        assert first.rows[0].queue_id != first.rows[1].queue_id
        with pytest.raises(RequestRefused, match="number_gap"):
            await hold(peer, "t", number=2)
        assert (await hold(peer, "t", number=1)).header.half_offset == 2
        await decide(peer, 0, "rollback")
        with pytest.raises(RequestRefused, match="already_rolled_back"):
            await hold(peer, "t", number=2)


async def test_the_ledger_and_check_fields_of_a_half_are_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", ledger="uuid", allowed_ms=5_000, check_after_ms=1_000)
        core = server.broker.store.core
        row = core.row(0)
        origin = core.names.origins[row.origin]
        assert (origin.group, origin.ledger, origin.allowed_ms) == ("pay", "uuid", 5_000)
        assert row.next_at_ms == T0 + 1_000


async def test_a_bulk_attempt_may_be_larger_than_a_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path, policy={"messages_max": 2}) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"%d" % number) for number in range(3)]
        with pytest.raises(RequestRefused, match="too_many_messages"):
            await hold(peer, "t", *rows)
        assert len((await hold(peer, "t", *rows, is_bulk=True)).rows) == 3


@pytest.mark.parametrize("form", FORMS)
async def test_many_transactions_are_held_at_once_each_on_its_own(
    tmp_path: Path, form: RowForm
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "known", sent(b"other"))
        rows = [
            sent_in("a", b"1"),
            sent_in("a", b"2"),
            sent_in("illegal", topic="a b"),
            sent_in("known"),
            sent_in("b", b"3"),
        ]
        header = HoldManyHeader(form=form, producer_group="pay")
        held = (await ask(peer, NativeCode.HOLD_MANY, header, rows)).rows
        assert [row.transaction_id for row in held] == ["a", "illegal", "known", "b"]
        assert [row.half_offset for row in held] == [1, None, None, 3]
        assert [row.refused for row in held] == [None, "topic_illegal", "number_reused", None]
        again = (await ask(peer, NativeCode.HOLD_MANY, header, rows)).rows
        assert [row.is_repeated for row in again] == [True, False, False, True]
        assert again[0].log_offset == held[0].log_offset
        await decide(peer, 1)
        assert [one.body for one in visible(server)] == [b"1", b"2"]


async def test_rows_of_one_transaction_stand_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent_in("a"), sent_in("b"), sent_in("a")]
        with pytest.raises(RequestRefused, match="transaction_split"):
            await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)
        assert server.broker.store.table.end == 0
        answer = await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"))
        assert answer.rows == []


@pytest.mark.parametrize("form", FORMS)
async def test_messages_in_bulk_are_stored_as_single_ones_are(
    tmp_path: Path, form: RowForm
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent(b"1", TAGS="x"), sent(b"2"), sent(b"3", topic="other", queue_id=-1)]
        stored = (await ask(peer, NativeCode.SEND_MANY, NativeHeader(form=form), rows)).rows
        assert [row.queue_offset for row in stored] == [0, 1, 0]
        first, second = visible(server)
        assert (first.body, second.body) == (b"1", b"2")
        assert first.log_offset == stored[0].log_offset
        pairs = parse_properties(first.properties)
        assert (pairs["TAGS"], pairs["CLUSTER"], len(pairs["UNIQ_KEY"])) == (
            "x",
            "DefaultCluster",
            32,
        )


async def test_messages_in_bulk_are_all_stored_or_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for wrong in (sent(topic="a b"), sent(TRAN_MSG="true"), sent(queue_id=99)):
            with pytest.raises(RequestRefused):
                await ask(peer, NativeCode.SEND_MANY, rows=[sent(), wrong])
        with pytest.raises(RequestRefused, match="no_messages"):
            await ask(peer, NativeCode.SEND_MANY)
        assert visible(server) == []
        scheduled = await ask(peer, NativeCode.SEND_MANY, rows=[sent(TIMER_DELAY_MS="1000")])
        assert scheduled.rows[0].queue_offset == -1


@pytest.mark.parametrize("form", FORMS)
async def test_every_decision_is_answered_with_the_truth(tmp_path: Path, form: RowForm) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in "abcd":
            await hold(peer, name)
        await ask(peer, NativeCode.DECIDE_MANY, ByHeader(by="first"), [decision(0)])
        rows = [
            decision(0),
            decision(0, "rollback"),
            decision(1, "rollback", producer_group="pay"),
            decision(2, producer_group="others"),
            decision(2, log_offset=1),
            decision(3, "unknown"),
            decision(99),
        ]
        answer = await ask(peer, NativeCode.DECIDE_MANY, ByHeader(form=form), rows)
        assert [(row.decided, row.is_repeated, row.refused) for row in answer.rows] == [
            ("committed", True, None),
            ("committed", True, "already_committed"),
            ("rolled_back", False, None),
            (None, False, "producer_group_wrong"),
            (None, False, "log_offset_wrong"),
            (None, False, None),
            (None, False, "no_such_half_message"),
        ]
        assert {row.decided_by for row in answer.rows[:2]} == {"first"}
        assert answer.rows[2].decided_by.startswith("127.0.0.1:")
        assert server.broker.contradictions.count == 1
        assert (await ask(peer, NativeCode.DECIDE_MANY)).rows == []


async def test_a_resolution_that_is_none_refuses_the_whole_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        with pytest.raises(RequestRefused, match="resolution_unknown"):
            await ask(peer, NativeCode.DECIDE_MANY, rows=[decision(0), decision(0, "maybe")])
        assert server.broker.store.core.row(0).state is State.PREPARED


async def test_thousands_of_decisions_share_flushes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent_in(f"t{number}") for number in range(3_000)]
        await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)
        ended = await ask(
            peer, NativeCode.DECIDE_MANY, rows=[decision(number) for number in range(3_000)]
        )
        assert {row.decided for row in ended.rows} == {"committed"}
        assert server.broker.reader.queue("orders", 1).end == 3_000  # type: ignore[union-attr]


async def test_more_decisions_than_the_inbox_holds_are_taken_as_there_is_room(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, writer={"inbox_max": 2, "messages_max": 2}) as server:
        peer = await Peer.to(server.broker_address)
        rows = [sent_in(name) for name in "abcdefg"]
        header = HoldManyHeader(producer_group="pay")
        held = await ask(peer, NativeCode.HOLD_MANY, header, rows)
        assert [row.half_offset for row in held.rows] == list(range(7))
        ended = await ask(peer, NativeCode.DECIDE_MANY, rows=[decision(row) for row in range(7)])
        assert [row.decided for row in ended.rows] == ["committed"] * 7


async def test_bulk_that_never_finds_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "TRIES_MAX", 2)
    async with serving(tmp_path, writer={"inbox_max": 1, "messages_max": 1}) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        full = Unavailable("inbox_full", "for the test")

        def refuse(*_: object) -> None:
            raise full

        with monkeypatch.context() as patch:
            patch.setattr(server.broker.writer, "put", refuse)
            with pytest.raises(Unavailable, match="inbox_full"):
                await ask(peer, NativeCode.DECIDE_MANY, rows=[decision(0)])
        assert (await decide(peer, 0)).decided == "committed"


def attempt(transaction_id: str, last_number: int = 0, messages: int = 1) -> AttemptRow:
    return AttemptRow(transaction_id=transaction_id, last_number=last_number, messages=messages)


async def test_a_batch_is_decided_once_and_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a1", sent(b"1"), is_bulk=True)
        await hold(peer, "a2", sent(b"2"), is_bulk=True)
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=0, by="driver")
        with pytest.raises(RequestRefused, match="attempt_differs"):
            await ask(peer, NativeCode.DECIDE_BATCH, header, [attempt("a1", messages=5)])
        rows = [attempt("a1"), attempt("a2")]
        done = (await ask(peer, NativeCode.DECIDE_BATCH, header, rows)).header
        assert (done.outcome, done.messages) == ("decided", 2)
        assert [one.body for one in visible(server)] == [b"1", b"2"]
        await hold(peer, "a3", is_bulk=True)
        again = (await ask(peer, NativeCode.DECIDE_BATCH, header, [attempt("a3")])).header
        assert again.outcome == "already_done"
        assert server.broker.store.core.row(2).state is State.ROLLED_BACK


async def test_a_batch_has_a_number_or_a_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for fields in ({}, {"batch_number": 1, "batch_name": "n"}):
            header = DecideBatchHeader(app_id="app", query_id="q", by="driver", **fields)  # type: ignore[arg-type]
            with pytest.raises(RequestRefused, match="batch_unnamed"):
                await ask(peer, NativeCode.DECIDE_BATCH, header)
        named = DecideBatchHeader(app_id="app", query_id="q", by="driver", batch_name="n")
        assert (await ask(peer, NativeCode.DECIDE_BATCH, named)).header.outcome == "decided"


async def test_garbage_in_a_body_is_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for form in FORMS:
            for code in (NativeCode.SEND_MANY, NativeCode.DECIDE_MANY, NativeCode.OBEY_VERDICTS):
                answer = await peer.ask(code, NativeHeader(form=form), b"\xc1garbage")
                assert answer.code == ResponseCode.INVALID_PARAMETER
                assert facts(answer)["error"] == "rows_malformed"
        assert server.broker.store.table.end == 0
        # The connection still works.
        assert (await hold(peer, "t")).header.half_offset == 0


async def test_another_version_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match="schema_version_unknown"):
            await ask(peer, NativeCode.SEND_MANY, NativeHeader(version=2), [sent()])


async def test_a_stock_client_s_refusal_has_no_fields_of_ours(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(999)
        assert facts(answer) == {}
        peer.write(encode_request(30_099, 77))
        unknown = await peer.until(lambda frame: frame.opaque == 77)
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_after_a_failed_flush_no_request_is_answered_as_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        server.broker.store.failure = OSError("disk gone")
        for code, rows in ((NativeCode.DECIDE_MANY, [decision(0)]), (NativeCode.STATUS, [])):
            with pytest.raises(Unavailable, match="store_failed"):
                await ask(peer, code, rows=rows)
        server.broker.store.failure = None


async def test_requests_that_our_clients_never_send_are_violations(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(NativeCode.SEND_MANY, NativeHeader(), b"\x91\x91\x01")
        assert facts(answer)["kind"] == ProtocolViolation.__name__
        assert server.broker.store.table.end == 0
