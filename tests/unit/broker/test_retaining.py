"""Retention beside clients: it works in slices, never blocks the loop, and checks for room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from escrowmq.broker.native.status import status
from escrowmq.broker.write.retaining import Retaining
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import read
from escrowmq.model.errors import Unavailable
from escrowmq.store.disk.space import RoomLevel
from escrowmq.store.recovery.recovery import start_store
from escrowmq.store.retention import carry_slices
from escrowmq.store.retention.needed import needed_rows
from escrowmq.store.retention.retirement import Waits
from escrowmq.testing import Engine, FaultyDisk, ManualClock, message
from escrowmq.testing.engine import STORE_HOST
from escrowmq.testing.faulty_disk import DiskCall
from escrowmq.testing.journal import JournalNote, Operation, Remove
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.commands import (
    Append,
    AttemptClaim,
    BatchReply,
    DecideBatch,
    EndReply,
    Prepare,
)
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.test_writer import SlowDisk, commit, held, in_thread, opened
from tests.unit.broker.wire import SEND, Peer, eventually, half, serving

HOUR_MS = 3_600_000
RETENTION_MS = 24 * HOUR_MS
SMALL = {
    "segment_bytes_max": 4_096,
    "retention_ms": RETENTION_MS,
    "copy_after_ms": HOUR_MS,
    "chunk_rows": 8,
}
KIB = 1024


@contextlib.asynccontextmanager
async def retaining(
    disk: FaultyDisk, clock: ManualClock, **config: object
) -> AsyncIterator[tuple[Writer, Retaining]]:
    """Open a writer and its retention, without a server."""
    store = opened(disk, **{**SMALL, **config})
    writer = Writer(store, clock)
    try:
        yield writer, Retaining(store, writer, clock.now_ms)
    finally:
        with contextlib.suppress(Unavailable):
            await writer.close()


async def make_old(writer: Writer, clock: ManualClock, count: int = 20) -> None:
    """Hold this many undecided transactions in old segments."""
    for number in range(count):
        await held(writer, number)
    for _ in range(2):
        await fill(writer)
        clock.advance(ms=RETENTION_MS)


async def fill(writer: Writer) -> None:
    """Send a segment's worth of messages."""
    for _ in range(3):
        await writer.submit(Append(messages=(message(bytes(1_500), topic="filler"),)))


async def test_old_segments_go_and_undecided_transactions_stay() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock) as (writer, retention):
        await make_old(writer, clock)
        store = writer._store
        await retention.run()
        assert store.log.start > 0
        assert (retention.state, retention.carried) == ("idle", 20)
        assert retention.segments_removed > 0
        assert needed_rows(store.table) == list(range(20))
        reply = (await writer.submit(commit(3))).reply
        assert isinstance(reply, EndReply)
    after = Engine(disk.crash(nothing_survives), clock=clock)
    assert [one.body for one in after.pull("orders")] == [b"m3"]


async def test_clients_are_answered_between_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
    clock = ManualClock()
    async with retaining(FaultyDisk(), clock) as (writer, retention):
        await make_old(writer, clock)
        running = asyncio.ensure_future(retention.run())
        answered = 0
        while not running.done():
            await writer.submit(Append(messages=(message(b"meanwhile"),)))
            answered += 1
        await running
        assert retention.carried == 20
        # There are 20 slices, and clients get a turn after each.
        assert answered >= 20


async def test_a_second_run_at_the_same_time_does_nothing() -> None:
    clock = ManualClock()
    async with retaining(FaultyDisk(), clock) as (writer, retention):
        await make_old(writer, clock)
        await asyncio.gather(retention.run(), retention.run())
        assert retention.carried == 20


class Watching(FaultyDisk):
    """A disk that records which thread performed each operation."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[int, Operation]] = []

    def perform(self, operation: Operation) -> None:
        """Record the operation and perform it."""
        self.done.append((threading.get_ident(), operation))
        super().perform(operation)


async def test_the_loop_never_waits_for_the_disk_but_for_the_log() -> None:
    """The loop only writes log frames and, on a quick disk, flushes them, as for each batch."""
    disk, clock = Watching(), ManualClock()
    async with retaining(disk, clock) as (writer, retention):
        await make_old(writer, clock)
        disk.done.clear()
        await retention.run()
        assert retention.segments_removed > 0
        here = threading.get_ident()
        on_loop = [operation for thread, operation in disk.done if thread == here]
        strangers = [
            operation
            for operation in on_loop
            if isinstance(operation, Remove) or not _path(operation).startswith("commitlog")
        ]
        assert strangers == []
        assert len(on_loop) < len(disk.done)


def _path(operation: Operation) -> str:
    return "" if isinstance(operation, JournalNote) else operation.path


class SlowCheckpoints(SlowDisk):
    """A disk that blocks the flush of a checkpoint until the test releases it."""

    slow = "checkpoint"


async def test_clients_are_answered_while_a_checkpoint_waits_for_the_disk() -> None:
    disk, clock = SlowCheckpoints(), ManualClock()
    async with retaining(disk, clock) as (writer, retention):
        await make_old(writer, clock)
        disk.may_flush.clear()
        disk.is_flushing.clear()
        running = asyncio.ensure_future(retention.run())
        await in_thread(disk.is_flushing)
        assert retention.state == "working"
        await writer.submit(commit(7))
        assert not running.done()
        disk.may_flush.set()
        await running
        assert retention.segments_removed > 0


async def test_retention_beside_a_large_spark_batch_waits_until_all_of_it_is_visible() -> None:
    """Entries become visible in slices; a checkpoint between two slices would miss some of them."""
    clock = ManualClock()
    async with retaining(FaultyDisk(), clock) as (writer, retention):
        store = writer._store
        for number in range(40):
            bulk = Prepare(
                group="%SINK%app",
                transaction_id="attempt",
                messages=(message(b"%d" % number),) * 8,
                number=number,
                bulk=True,
            )
            assert (await writer.submit(bulk)).refused is None
        for _ in range(2):
            await fill(writer)
            clock.advance(ms=RETENTION_MS)
        decided = asyncio.ensure_future(
            writer.submit(
                DecideBatch(
                    app_id="app",
                    query_id="q",
                    batch_id=1,
                    attempts=(AttemptClaim(transaction_id="attempt", last_number=39, rows=320),),
                    by="spark",
                )
            )
        )
        reply = (await decided).reply
        assert isinstance(reply, BatchReply)
        assert not store.dispatcher.is_idle
        assert await writer.alone(lambda one: one.dispatcher.is_idle)
        await retention.run()
        assert store.log.start > 0
        queue = store.queues[store.core.names.number_of("orders", 0) or 0]
        assert (queue.start, queue.end) == (0, 320)


# Disk space


async def test_a_disk_without_room_makes_retention_wait_and_stops_no_broker() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock, free_bytes_min=64 * KIB) as (writer, retention):
        await make_old(writer, clock)
        store = writer._store
        # Only checkpoints and retention may use the room that is left, and it is too small.
        disk.capacity_bytes = used_bytes(disk) + 16 * KIB
        assert store.space.look() is RoomLevel.NO_DECISIONS
        disk.capacity_bytes -= 15 * KIB
        await retention.run()
        assert (retention.state, store.failure) == ("waits_for_room", None)
        assert retention.missing_bytes > 0
        assert retention.carried == 0
        disk.capacity_bytes += 48 * KIB
        await retention.run()
        assert (retention.state, retention.missing_bytes, retention.carried) == ("idle", 0, 20)


async def test_a_full_disk_refuses_decisions_and_still_carries_messages() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock, free_bytes_min=256 * KIB) as (writer, retention):
        await make_old(writer, clock)
        disk.capacity_bytes = used_bytes(disk) + 100 * KIB
        writer.look_at_space()
        with pytest.raises(Unavailable, match="disk_full"):
            await writer.submit(commit(0))
        await retention.run()
        assert (retention.waits, retention.carried) == (Waits.NO, 20)


def used_bytes(disk: FaultyDisk) -> int:
    return sum(map(len, disk.snapshot().values()))


async def test_a_broker_that_stopped_on_a_full_disk_starts_again_and_makes_room() -> None:
    """Another program has filled the disk, and only the reserve is left."""
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock) as (writer, _):
        await make_old(writer, clock, count=100)
        writer._store.checkpoint()
        await held(writer, 999)
    used = used_bytes(disk)
    config = writer._store.config
    full = replace(config, free_bytes_min=256 * KIB)
    disk.allocate("reserve", 32 * KIB)
    disk.capacity_bytes = used + 32 * KIB
    # The first write of the start fails, so the start releases the reserve and tries again.
    disk.fail_after(DiskCall.WRITE, 0, errno.ENOSPC, under="commitlog")
    store, _ = start_store(disk, full, CheckPolicy(), STORE_HOST, read(clock))
    again = Writer(store, clock)
    assert store.space.reserve.held == 0
    with pytest.raises(Unavailable, match="disk_full"):
        await again.submit(commit(999))
    retention = Retaining(store, again, clock.now_ms)
    await retention.run()
    assert retention.segments_removed > 0
    assert store.failure is None
    assert len(needed_rows(store.table)) == 101
    disk.capacity_bytes += 1024 * KIB
    again.look_at_space()
    await retention.keep_reserve()
    assert store.space.reserve.is_whole
    assert (await again.submit(commit(100))).refused is None
    await again.close()


# Failures


async def test_a_checkpoint_that_fails_stops_the_store_and_deletes_nothing() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock) as (writer, retention):
        await make_old(writer, clock)
        before = disk.list("commitlog")
        disk.fail_after(DiskCall.RENAME, 0, errno.EIO, under="checkpoint")
        with pytest.raises(Unavailable, match="store_failed"):
            await retention.run()
        assert writer.failed.done()
        assert set(before) <= set(disk.list("commitlog"))
        assert retention.state == "idle"


async def test_a_file_that_cannot_be_removed_is_an_error_of_retention_alone() -> None:
    disk, clock = FaultyDisk(), ManualClock()
    async with retaining(disk, clock) as (writer, retention):
        await make_old(writer, clock)
        disk.fail_after(DiskCall.REMOVE, 0, errno.EIO, under="commitlog")
        with pytest.raises(OSError, match="Input/output"):
            await retention.run()
        assert not writer.failed.done()
        await writer.submit(commit(0))


async def test_a_checkpoint_is_taken_when_it_is_asked_for() -> None:
    clock = ManualClock()
    async with retaining(FaultyDisk(), clock) as (writer, _):
        await held(writer, 1)
        store = writer._store
        await asyncio.gather(writer.checkpoint(), writer.checkpoint())
        assert store.checkpointed == store.log.end


# In a server


async def test_a_broker_shows_what_retention_waits_for(tmp_path: Path) -> None:
    settings = {"segment_bytes_max": 4_096, "retention_ms": 1_000, "copy_after_ms": 1_000}
    async with serving(tmp_path, store=settings) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(20):
            await peer.ask(SEND, half(f"k{number}"), bytes(300))
        retention = server.broker.retaining
        retention.may_delete = lambda: False
        clock = server._clock
        assert isinstance(clock, ManualClock)
        clock.advance(ms=HOUR_MS)
        await peer.ask(SEND, half("young"), bytes(4_000))
        clock.advance(ms=HOUR_MS)
        await retention.run()
        told = status(server.broker)
        assert (told.retention, told.log_start) == ("waits_for_permission", 0)
        assert told.undecided_bytes > 20 * 300
        retention.may_delete = lambda: True
        await retention.run()
        assert status(server.broker).retention == "idle"
        assert status(server.broker).log_start > 0


async def test_a_broker_keeps_a_reserve_and_makes_it_again(tmp_path: Path) -> None:
    async with serving(tmp_path, store={"free_bytes_min": 8 * 1024 * KIB}) as server:
        reserve = server.broker.store.space.reserve
        path = tmp_path / "store" / "reserve"
        assert path.stat().st_blocks * 512 >= reserve.size == 1024 * KIB
        assert status(server.broker).disk_reserve_bytes >= reserve.size
        reserve.release()
        assert not path.exists()
        await eventually(lambda: reserve.is_whole and path.exists())


async def test_retention_leaves_most_of_the_time_to_senders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    clock = ManualClock()
    async with retaining(FaultyDisk(), clock) as (writer, retention):
        await make_old(writer, clock)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        writer.put(Append(messages=(message(b"now"),)), lambda _: None, "somebody")
        await retention.run()
        assert max(slept) > 0
