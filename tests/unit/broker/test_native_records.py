"""The log over a real socket: half messages, decisions, checks, and life lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.native import log_lists
from escrowmq.broker.server import Server
from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import LogRangeHeader, TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import AttemptRow, CheckRow, HalfRow, OpRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.store.reading import log_sweep
from escrowmq.testing import ManualClock
from escrowmq.transaction.commands import CheckSent, Command, End, Park, Resume
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    eventually,
    half,
    serving,
    visible,
)

HOUR_MS = 3_600_000


async def do(server: Server, command: Command) -> None:
    decision = await server.broker.writer.submit(command)
    assert decision.refused is None


async def a_day(server: Server) -> Peer:
    """Commit one transaction, roll one back, park and resume a third; return the peer."""
    peer = await Peer.to(server.broker_address)
    await hold(peer, "many", sent(b"1"), sent(b"2", topic="stock"), ledger="uuid")
    await hold(peer, "many", sent(b"3"), number=1, ledger="uuid")
    await peer.ask(SEND, half("stock"), b"4")
    await hold(peer, "parked")
    await do(server, CheckSent(half_offset=4, client="c1"))
    unknown = End(
        half_offset=4, resolution=Resolution.UNKNOWN, by="c1", from_check=True, remark="why"
    )
    await do(server, unknown)
    await do(server, Park(half_offset=4, reason="exhausted"))
    await do(server, Resume(half_offset=4, by="ops"))
    await decide(peer, 0)
    await decide(peer, 3, "rollback")
    return peer


@pytest.mark.parametrize("form", list(RowForm))
async def test_half_messages_are_told_as_they_came(tmp_path: Path, form: RowForm) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        rows = await all_rows(peer, NativeCode.LIST_HALVES, LogRangeHeader(form=form))
        assert rows[0] == HalfRow(
            log_offset=rows[0].log_offset,
            stored_at_ms=T0,
            first=0,
            head=0,
            message_count=2,
            transaction_id="many",
            producer_group="pay",
            ledger="uuid",
            number=0,
            is_copy=False,
        )
        assert [(row.first, row.head, row.number) for row in rows] == [
            (0, 0, 0),
            (2, 0, 1),
            (3, 3, -1),
            (4, 4, 0),
        ]


async def test_decisions_and_checks_are_told_in_the_order_of_the_log(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        ops = await all_rows(peer, NativeCode.LIST_OPS, LogRangeHeader())
        assert [(op.head, op.first, op.message_count, op.state) for op in ops] == [
            (0, 0, 2, 1),
            (0, 2, 1, 1),
            (3, 3, 1, 2),
        ]
        assert ops[0].log_offset == ops[1].log_offset
        assert {(op.app_id, op.batch_id) for op in ops} == {(None, None)}
        checks = await all_rows(peer, NativeCode.LIST_CHECKS, LogRangeHeader())
        assert [(one.event, one.checks_sent, one.detail) for one in checks] == [
            ("asked", 1, "c1"),
            ("answered", 1, "c1"),
            ("parked", None, "exhausted"),
            ("resumed", None, "ops"),
        ]
        assert {type(one) for one in (*ops, *checks)} == {OpRow, CheckRow}


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize(
    "code", [NativeCode.LIST_HALVES, NativeCode.LIST_OPS, NativeCode.LIST_CHECKS]
)
async def test_pages_and_ranges_hold_everything_once(
    tmp_path: Path, code: NativeCode, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        whole = await all_rows(peer, code, LogRangeHeader())
        assert await all_rows(peer, code, LogRangeHeader(limit=limit)) == whole
        # Now each page reads only a few bytes of the log.
        monkeypatch.setattr(log_lists, "PAGE_S_MAX", 0)
        monkeypatch.setattr(log_sweep, "BLOCK_BYTES", 100)
        assert await all_rows(peer, code, LogRangeHeader(limit=limit)) == whole
        settled = server.broker.store.durable_end
        parts = []
        for start in range(0, settled, 333):
            header = LogRangeHeader(start=start, end=start + 333)
            parts += await all_rows(peer, code, header)
        assert parts == whole


async def test_a_page_may_end_within_a_decision(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        first = await ask(peer, NativeCode.LIST_OPS, LogRangeHeader(limit=1))
        assert first.header.cursor == f"{first.rows[0].log_offset}/1"
        assert (first.header.log_start, first.header.log_end) == (
            0,
            server.broker.store.durable_end,
        )


@pytest.mark.parametrize("cursor", ["x", "1/2/3", "-1", "1/x"])
async def test_a_cursor_that_the_broker_did_not_make_is_refused(
    tmp_path: Path, cursor: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(ProtocolViolation, match="cursor_malformed"):
            await ask(peer, NativeCode.LIST_OPS, LogRangeHeader(cursor=cursor))


async def test_a_batch_decision_names_its_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in ("a1", "a2"):
            await hold(peer, name, is_bulk=True)
        for number, names in ((0, ("a1", "a2")), (1, ())):
            header = DecideBatchHeader(app_id="app", query_id="q", batch_number=number, by="d")
            rows = [AttemptRow(transaction_id=name, last_number=0, messages=1) for name in names]
            await ask(peer, NativeCode.DECIDE_BATCH, header, rows)
        ops = await all_rows(peer, NativeCode.LIST_OPS, LogRangeHeader())
        assert [(op.first, op.app_id, op.batch_id, op.decided_by) for op in ops] == [
            (0, "app", "0", "d"),
            (1, "app", "0", "d"),
        ]
        line = await life_line(peer, transaction_id="a2")
        assert [event.event for event in line] == ["held", "committed"]
        assert line[1].detail == "batch 0 of app, query q"


async def test_a_carried_message_is_told_as_a_copy(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store={"copy_after_ms": HOUR_MS}) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "old")
        clock.advance(ms=2 * HOUR_MS)
        await decide(peer, 0)
        rows = await all_rows(peer, NativeCode.LIST_HALVES, LogRangeHeader())
        assert [(row.first, row.transaction_id, row.is_copy) for row in rows] == [
            (0, "old", False),
            (0, "old", True),
        ]
        events = [event.event for event in await life_line(peer, half_offset=0)]
        assert events == ["held", "committed", "visible"]


# Life lines.


async def life_line(peer: Peer, half_offset: int = -1, transaction_id: str = "") -> list[Any]:
    header = TransactionHeader(half_offset=half_offset, transaction_id=transaction_id)
    return await all_rows(peer, NativeCode.LIFE_LINE, header)


async def test_a_life_line_tells_all_that_happened_to_one_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        answer = await ask(peer, NativeCode.LIFE_LINE, TransactionHeader(transaction_id="parked"))
        told = answer.header
        assert (told.half_offset, told.state, told.checks_sent) == (4, "prepared", 0)
        assert (told.transaction_id, told.producer_group) == ("parked", "pay")
        assert told.next_check_at_ms == T0
        assert [(event.event, event.by, event.detail) for event in answer.rows] == [
            ("held", "pay", "1 messages from 4 on"),
            ("asked", "c1", "check 1"),
            ("answered", "c1", "check 1: why"),
            ("parked", "", "exhausted"),
            ("resumed", "ops", ""),
        ]


@pytest.mark.parametrize("half_offset", [0, 1, 2])
async def test_any_half_message_names_its_transaction_also_once_it_is_decided(
    tmp_path: Path, half_offset: int
) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        answer = await ask(peer, NativeCode.LIFE_LINE, TransactionHeader(half_offset=half_offset))
        assert (answer.header.half_offset, answer.header.state) == (0, "committed")
        assert answer.header.next_check_at_ms is None
        assert [event.event for event in answer.rows] == [
            "held",
            "held",
            "committed",
            "visible",
            "visible",
        ]
        assert answer.rows[3].detail == "orders, queue 1, offsets 0 to 1"


async def test_a_life_line_comes_in_pages_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        header = TransactionHeader(transaction_id="parked")
        whole = await all_rows(peer, NativeCode.LIFE_LINE, header)
        small = msgspec.structs.replace(header, limit=1)
        assert await all_rows(peer, NativeCode.LIFE_LINE, small) == whole


async def test_a_message_that_waits_after_its_commit_is_visible_later(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        held = await peer.ask(SEND, half("k", DELAY="1"))
        await peer.ask(END, ending(held, COMMIT))
        header = TransactionHeader(transaction_id="k")
        before = await ask(peer, NativeCode.LIFE_LINE, header)
        assert [event.event for event in before.rows] == ["held", "committed"]
        assert before.header.visible_at_ms is None
        clock.advance(seconds=2)
        await eventually(lambda: visible(server))
        after = await ask(peer, NativeCode.LIFE_LINE, header)
        assert after.header.visible_at_ms == T0 + 2_000
        assert after.rows == before.rows


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "transaction_unnamed"),
        ({"half_offset": 0, "transaction_id": "t"}, "transaction_unnamed"),
        ({"half_offset": 77}, "transaction_unknown"),
        ({"transaction_id": "nobody"}, "transaction_unknown"),
    ],
)
async def test_a_transaction_that_is_not_there_is_refused(
    tmp_path: Path, fields: dict[str, object], code: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        with pytest.raises(RequestRefused, match=code):
            await ask(peer, NativeCode.LIFE_LINE, TransactionHeader(**fields))  # type: ignore[arg-type]


async def test_of_a_transaction_whose_frames_are_lost_the_table_still_tells(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        server.broker.store.lost.add(0, server.broker.store.durable_end)
        answer = await ask(peer, NativeCode.LIFE_LINE, TransactionHeader(half_offset=2))
        assert (answer.header.half_offset, answer.header.transaction_id) == (2, "")
        assert answer.header.state == "committed"
