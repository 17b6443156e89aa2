"""A broker with more overdue messages than one slice holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.broker.server import Server
from escrowmq.broker.write import releasing
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.store.log.commit_log import CommitLog
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Append
from tests.unit.broker.wire import SEND, T0, Peer, eventually, sending, serving
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, message, releasable

if TYPE_CHECKING:
    import pytest

COUNT = 3 * releasing.SLICE_ROWS_MAX


def waiting(number: int, body_bytes: int = 0) -> Append:
    """Return a delayed message; the later it is sent, the earlier it is due."""
    due_ms = T0 + MINUTE + COUNT - number
    body = str(due_ms).encode().ljust(body_bytes)
    return Append(messages=(message(body, deliver_at_ms=due_ms),))


@asynccontextmanager
async def shop(data: Path, clock: ManualClock, **changes: Any) -> AsyncIterator[Server]:  # noqa: ANN401
    """Start a broker with the topic of all messages in this module."""
    async with serving(data, clock, **changes) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, sending(), b"first")).code == ResponseCode.SUCCESS
        yield server


async def test_overdue_messages_become_visible_in_the_order_of_their_times(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with shop(tmp_path, clock, store={"chunk_rows": 1024}) as server:
        writer = server.broker.writer
        await asyncio.gather(*(writer.submit(waiting(number)) for number in range(COUNT)))
        clock.advance(ms=2 * MINUTE)
        reader = server.broker.reader
        await eventually(lambda: (queue := reader.queue("orders", 0)) and queue.end == COUNT)
        found: list[bytes] = []
        while len(found) < COUNT:
            pulled = reader.pull("orders", 0, len(found), count_max=1_000, bytes_max=2**30)
            found += [decode(one).body for one in pulled.messages]
        assert found == [str(T0 + MINUTE + after).encode() for after in range(1, COUNT + 1)]


async def test_a_slice_holds_fewer_messages_when_they_must_be_copied(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with shop(tmp_path, clock, store={"copy_after_ms": HOUR}) as server:
        broker = server.broker
        await asyncio.gather(*(broker.writer.submit(waiting(number)) for number in range(600)))
        await broker.writer.submit(waiting(COUNT, 250 * releasing.COPY_COST_BYTES))
        rows = releasable(broker.store.table, T0 + 2 * MINUTE, 1_000)
        assert rows[0] == 600
        assert len(rows) == 601

        def slicing(rows: list[int], now_ms: int) -> list[int]:
            chosen, copied = broker.releasing._affordable(rows, now_ms)
            assert bool(copied) == (now_ms > T0 + HOUR)
            return chosen

        assert slicing(rows, T0 + MINUTE) == rows
        # A copied message costs COPY_COST and its own row.
        of_small = releasing.SLICE_ROWS_MAX // (releasing.COPY_COST + 1)
        assert len(slicing(rows[1:], T0 + 2 * HOUR)) == of_small
        assert 2 < len(slicing(rows, T0 + 2 * HOUR)) < of_small - 10


async def test_a_release_that_finds_nothing_ends(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with shop(tmp_path, clock) as server:
        broker = server.broker
        await broker.writer.submit(waiting(0))
        # This clock chooses the slice and is ahead of the writer's clock.
        late = releasing.Releasing(broker.store, broker.writer, ManualClock(T0 + HOUR))
        await late.release_due()
        assert broker.store.table.needed == 1
        clock.advance(ms=2 * MINUTE + COUNT * SECOND)
        await eventually(lambda: broker.store.table.needed == 0)


async def test_the_broker_answers_while_the_disk_reads_messages_to_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(T0)
    is_reading, may_read = threading.Event(), threading.Event()
    peek = CommitLog.peek

    def waits(log: CommitLog, log_offset: int, size: int) -> bytes:
        is_reading.set()
        assert may_read.wait(20)
        return peek(log, log_offset, size)

    async with shop(tmp_path, clock) as server:
        await server.broker.writer.submit(waiting(0))
        monkeypatch.setattr(CommitLog, "peek", waits)
        clock.advance(ms=2 * HOUR)
        await eventually(is_reading.is_set)
        try:
            peer = await Peer.to(server.broker_address)
            assert (await peer.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS
            assert server.broker.store.table.needed == 1
        finally:
            may_read.set()
        await eventually(lambda: server.broker.store.table.needed == 0)


async def test_reading_ahead_passes_over_what_retention_deleted(tmp_path: Path) -> None:
    async with shop(tmp_path, ManualClock(T0)) as server:
        broker = server.broker
        await broker.writer.submit(waiting(0))
        half = broker.store.core.row(0)
        broker.store.log.segments[0].file.close()
        broker.releasing._read_ahead([half])
        broker.store.log.segments.clear()
        broker.releasing._read_ahead([half])
