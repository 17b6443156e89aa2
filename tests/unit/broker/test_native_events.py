"""All events of transactions in one list, which also names the unreadable ranges of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.native import log_lists
from escrowmq.broker.server import Server
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.native.frames import BlocksAnswer, encode_call, read_blocks_answer
from escrowmq.protocol.native.headers import ListTransactionsHeader, LogRangeHeader, PagedHeader
from escrowmq.protocol.native.raw_log import NameRow, ReadLogHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import AttemptRow, LogEventRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.store.reading import log_sweep
from escrowmq.store.reading.log_scan import LogScan
from escrowmq.testing import ManualClock
from escrowmq.transaction.records import CatalogRecord
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent
from tests.unit.broker.test_native_records import HOUR_MS, a_day
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    T0,
    Peer,
    ending,
    eventually,
    half,
    sending,
    serving,
    visible,
)

LIST = NativeCode.LIST_EVENTS


def event(kind: str, log_offset: int, **fields: Any) -> LogEventRow:  # noqa: ANN401 - columns
    """Return an event with these columns; all others are null."""
    none = dict.fromkeys(LogEventRow.__struct_fields__)
    return LogEventRow(**{**none, "at_ms": T0, **fields, "event": kind, "log_offset": log_offset})


def told(rows: list[Any]) -> list[tuple[object, ...]]:
    return [(row.event, row.head, row.first, row.message_count) for row in rows]


@pytest.mark.parametrize("form", list(RowForm))
async def test_everything_is_told_in_the_order_of_the_log(tmp_path: Path, form: RowForm) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        rows = await all_rows(peer, LIST, LogRangeHeader(form=form))
        assert told(rows) == [
            ("held", 0, 0, 2),
            ("held", 0, 2, 1),
            ("held", 3, 3, 1),
            ("held", 4, 4, 1),
            ("asked", 4, None, None),
            ("answered", 4, None, None),
            ("parked", 4, None, None),
            ("resumed", 4, None, None),
            ("committed", 0, 0, 2),
            ("committed", 0, 2, 1),
            ("visible", 0, None, 2),
            ("visible", 0, None, 1),
            ("rolled_back", 3, 3, 1),
        ]
        place = [row.log_offset for row in rows]
        named = {"producer_group": "pay", "ledger": "uuid"}
        assert rows[1] == event(
            "held",
            place[1],
            head=0,
            first=2,
            message_count=1,
            transaction_id="many",
            number=1,
            **named,
        )
        assert rows[4] == event("asked", place[4], head=4, checks_sent=1, by="c1")
        assert rows[6] == event("parked", place[6], head=4, detail="exhausted")
        assert rows[7] == event("resumed", place[7], head=4, by="ops")
        where = {"topic": "orders", "queue_id": 1, "queue_offset": 0}
        assert rows[10] == event("visible", place[10], head=0, message_count=2, **where)


async def test_a_transaction_of_one_message_says_which_became_visible_where(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in "abc":
            await hold(peer, name)
        first = server.broker.store.core.row(0).log_offset
        await decide(peer, 1)
        await decide(peer, 2, "rollback")
        # An ordinary message causes no event.
        await peer.ask(SEND, sending("orders"), b"ordinary")
        rows = await all_rows(peer, LIST, LogRangeHeader(start=first))
        assert told(rows) == [
            ("held", 1, 1, 1),
            ("held", 2, 2, 1),
            ("committed", 1, 1, 1),
            ("visible", 1, 1, 1),
            ("rolled_back", 2, 2, 1),
        ]
        assert (rows[3].topic, rows[3].queue_id, rows[3].queue_offset) == ("orders", 1, 0)
        assert [row.transaction_id for row in rows] == ["b", "c", None, None, None]
        assert rows[2].by == rows[4].by


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_and_ranges_hold_every_event_once(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        whole = await all_rows(peer, LIST, LogRangeHeader())
        assert await all_rows(peer, LIST, LogRangeHeader(limit=limit)) == whole
        monkeypatch.setattr(log_lists, "PAGE_S_MAX", 0)
        monkeypatch.setattr(log_sweep, "BLOCK_BYTES", 100)
        assert await all_rows(peer, LIST, LogRangeHeader(limit=limit)) == whole
        parts = []
        for start in range(0, server.broker.store.durable_end, 177):
            parts += await all_rows(peer, LIST, LogRangeHeader(start=start, end=start + 177))
        assert parts == whole


async def test_each_run_of_a_batch_is_told_with_its_own_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a1", is_bulk=True)
        await hold(peer, "a2", is_bulk=True)
        await hold(peer, "a1", sent(b"more"), number=1, is_bulk=True)
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=7, by="d")
        rows = [
            AttemptRow(transaction_id="a1", last_number=1, messages=2),
            AttemptRow(transaction_id="a2", last_number=0, messages=1),
        ]
        await ask(peer, NativeCode.DECIDE_BATCH, header, rows)
        events = (await all_rows(peer, LIST, LogRangeHeader()))[3:]
        batch = {"app_id": "app", "batch_id": "7"}
        assert events == [
            event(
                "committed",
                events[0].log_offset,
                head=head,
                first=first,
                message_count=1,
                by="d",
                detail="query q",
                **batch,
            )
            for head, first in ((0, 0), (0, 2), (1, 1))
        ] + [
            event(
                "visible",
                events[0].log_offset,
                message_count=3,
                topic="orders",
                queue_id=1,
                queue_offset=0,
                **batch,
            )
        ]


async def test_carried_and_delayed_messages_are_told(
    tmp_path: Path,
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock, store={"copy_after_ms": HOUR_MS}) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "old")
        clock.advance(ms=2 * HOUR_MS)
        await decide(peer, 0)
        held = await peer.ask(SEND, half("k", DELAY="1"))
        await peer.ask(END, ending(held, COMMIT))
        await peer.ask(SEND, sending("orders", {"DELAY": "1"}), b"ordinary")
        clock.advance(seconds=2)
        # The copied message, the delayed half message and the ordinary one.
        await eventually(lambda: len(visible(server)) == 3)
        rows = await all_rows(peer, LIST, LogRangeHeader())
        assert told(rows) == [
            ("held", 0, 0, 1),
            ("carried", 0, 0, 1),
            ("committed", 0, 0, 1),
            ("visible", 0, 0, 1),
            ("held", 1, 1, 1),
            ("committed", 1, 1, 1),
            # The release record covers several messages, so only the message itself is known.
            ("visible", None, 1, 1),
        ]
        assert rows[1].transaction_id == "old"


def damage(server: Server, number: int) -> tuple[int, int]:
    """Damage the head of a frame with messages; return its start and length."""
    store = server.broker.store
    frames = LogScan(store).frames(0, 2**30)
    victim = [
        one
        for one in frames
        if not any(isinstance(record, CatalogRecord) for record in one.records)
    ][number]
    store.log.segments[0].file.write_at(victim.log_offset, b"????")
    return victim.log_offset, victim.end - victim.log_offset


async def test_damaged_events_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a page could end at its time limit before it reaches its row limit.
    monkeypatch.setattr(log_lists, "PAGE_S_MAX", 60.0)
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        at, length = damage(server, 3)
        rows = await all_rows(peer, LIST, LogRangeHeader())
        assert told(rows)[:3] == [
            ("held", 0, 0, 2),
            ("held", 0, 2, 1),
            ("unreadable", None, None, None),
        ]
        assert rows[2] == event("unreadable", at, detail=f"{length} bytes")
        for code in (LIST, NativeCode.LIST_HALVES, NativeCode.LIST_OPS, NativeCode.LIST_CHECKS):
            answer = await ask(peer, code, LogRangeHeader())
            assert answer.header.unreadable_bytes == length
            # Only the page that covers the damage reports it.
            before = await ask(peer, code, LogRangeHeader(end=at))
            after = await ask(peer, code, LogRangeHeader(start=at + 1))
            assert (before.header.unreadable_bytes, after.header.unreadable_bytes) == (0, 0)
        first = await ask(peer, LIST, LogRangeHeader(limit=2))
        second = await ask(peer, LIST, LogRangeHeader(limit=1, cursor=first.header.cursor))
        assert (first.header.unreadable_bytes, second.header.unreadable_bytes) == (0, length)


async def test_only_the_columns_that_are_wanted_are_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await a_day(server)
        asked = {
            LIST: LogRangeHeader(columns="event, log_offset"),
            NativeCode.LIST_HALVES: LogRangeHeader(columns="first,ledger"),
            NativeCode.LIST_OPS: LogRangeHeader(columns="decided_by"),
            NativeCode.LIST_CHECKS: LogRangeHeader(columns="checks_sent"),
            NativeCode.LIST_TRANSACTIONS: ListTransactionsHeader(columns="half_offset,ledger"),
        }

        def read() -> dict[NativeCode, dict[str, list[Any]]]:
            with NativeCalls(server.broker_address) as calls:
                answers = {code: calls.call_arrow(code, header) for code, header in asked.items()}
                return {code: answer.batch.to_pydict() for code, answer in answers.items()}

        found = await asyncio.to_thread(read)
        # Columns come in the order of the list, not of the request.
        assert list(found[LIST]) == ["log_offset", "event"]
        assert found[NativeCode.LIST_HALVES]["ledger"] == ["uuid", "uuid", "", ""]
        assert len(found[NativeCode.LIST_OPS]["decided_by"]) == 3
        assert found[NativeCode.LIST_CHECKS]["checks_sent"] == [1, 1, None, None]
        assert found[NativeCode.LIST_TRANSACTIONS] == {"half_offset": [4], "ledger": [""]}


async def test_a_column_that_is_none_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        header = LogRangeHeader(form=RowForm.ARROW, columns="event,body")
        with pytest.raises(RequestRefused, match=r"column_unknown.*checks_sent"):
            await ask(peer, LIST, header)


async def test_the_log_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        store = server.broker.store
        whole = (tmp_path / "store/commitlog" / f"{0:020d}").read_bytes()[: store.durable_end]

        async def read(start: int, end: int) -> BlocksAnswer:
            peer.write(encode_call(NativeCode.READ_LOG, 99, ReadLogHeader(start=start, end=end)))
            frame = await peer.until(lambda one: one.is_response and one.opaque == 99)
            return read_blocks_answer(NativeCode.READ_LOG, frame)

        answer = await read(-1, 2**40)
        assert bytes(answer.data) == whole
        assert answer.columns["log_offset"].tolist() == [0]
        assert answer.columns["size"].tolist() == [len(whole)]
        assert answer.header.seed == store.seed
        assert (answer.header.log_start, answer.header.log_end) == (0, store.durable_end)
        # The first frame is always whole. Past the end of the log, the answer is empty.
        first = next(LogScan(store).frames(0))
        assert bytes((await read(0, 1)).data) == whole[: first.end]
        assert (await read(store.durable_end, 2**40)).columns["size"].tolist() == [0]
        # While clients send, the limit of bytes is lower.
        monkeypatch.setattr(log_lists, "LOG_BYTES_BESIDE", 1)
        monkeypatch.setattr(log_lists, "LOG_BYTES", 1)
        assert bytes((await read(0, 2**40)).data) == whole[: first.end]


async def test_numbers_in_records_have_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await a_day(server)
        names = await all_rows(peer, NativeCode.LIST_NAMES, PagedHeader(limit=1))
        assert NameRow("queue", 0, "orders", 1, None) in names
        assert NameRow("origin", 0, "pay", None, "uuid") in names
        assert names == await all_rows(peer, NativeCode.LIST_NAMES, PagedHeader())
        core = server.broker.store.core
        assert len(names) == len(core.names.queues) + len(core.names.origins)
