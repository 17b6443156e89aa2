"""The writer: durable before answered, group commit, and decisions before new messages."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from typing import TYPE_CHECKING

import pytest

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write.writer import UNFLUSHED_BATCH_MAX, Writer
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.recovery.recovery import open_store
from escrowmq.store.retention.retention import retain
from escrowmq.testing import Engine, FaultyDisk, ManualClock, message
from escrowmq.testing.engine import STORE_HOST
from escrowmq.testing.faulty_disk import DiskCall
from escrowmq.testing.journal import Flush
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.commands import Append, Appended, End, EndReply, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.store import Store
    from escrowmq.testing.disk_state import Inode

DEADLINE_S = 20


class SlowDisk(FaultyDisk):
    """A disk that blocks flushes of the log until the test releases them."""

    slow = "commitlog"

    def __init__(self) -> None:
        super().__init__()
        self.may_flush = threading.Event()
        self.is_flushing = threading.Event()
        self.may_flush.set()

    def flush(self, inode: Inode) -> None:
        """Wait for the test, then flush."""
        if inode.path.startswith(self.slow):
            self.is_flushing.set()
            assert self.may_flush.wait(DEADLINE_S)
        super().flush(inode)


def opened(disk: FaultyDisk, **config: object) -> Store:
    """Open a store on this disk."""
    store, _ = open_store(disk, StoreConfig(**config), CheckPolicy(), STORE_HOST)  # type: ignore[arg-type]
    return store


def prepare(number: int) -> Prepare:
    """Return a command that holds a transaction of one message."""
    return Prepare(group="g", transaction_id=f"t{number}", messages=(message(b"m%d" % number),))


def commit(half_offset: int) -> End:
    """Return a command that commits this transaction."""
    return End(half_offset=half_offset, resolution=Resolution.COMMIT, by="p")


async def held(writer: Writer, number: int) -> HoldReply:
    """Hold a transaction of one message."""
    reply = (await writer.submit(prepare(number))).reply
    assert isinstance(reply, HoldReply)
    return reply


def log_flushes(disk: FaultyDisk) -> int:
    """Return how often the log has been flushed."""
    return sum(
        isinstance(operation, Flush) and operation.path.startswith("commitlog")
        for operation in disk.journal
    )


async def in_thread(wait: threading.Event) -> None:
    """Wait until a thread sets this event."""
    assert await asyncio.to_thread(wait.wait, DEADLINE_S)


async def test_answered_commands_survive_a_power_cut() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    half = await held(writer, 1)
    await writer.submit(commit(half.half_offset))
    after = Engine(disk.crash(nothing_survives))
    assert [stored.body for stored in after.pull("orders")] == [b"m1"]
    await writer.close()


async def test_commands_that_come_together_share_a_flush() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 0)
    before = log_flushes(disk)
    replies = await asyncio.gather(*(held(writer, number) for number in range(1, 51)))
    assert sorted(reply.half_offset for reply in replies) == list(range(1, 51))
    assert log_flushes(disk) - before == 1
    await writer.close()


async def test_while_one_flush_runs_the_next_batch_gathers() -> None:
    disk = SlowDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 0)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    first = [asyncio.ensure_future(held(writer, number)) for number in (1, 2)]
    await in_thread(disk.is_flushing)
    before = log_flushes(disk)
    later = [asyncio.ensure_future(held(writer, number)) for number in range(3, 30)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in (*first, *later))
    disk.may_flush.set()
    await asyncio.gather(*first, *later)
    assert log_flushes(disk) - before == 2
    await writer.close()


async def test_with_durability_os_nothing_is_flushed_before_the_answer() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk, durability="os"), ManualClock())
    await asyncio.gather(*(held(writer, number) for number in range(5)))
    assert log_flushes(disk) == 0
    await writer.close()
    assert log_flushes(disk) == 1


async def test_where_nothing_is_flushed_the_first_are_answered_before_the_last_is_begun() -> None:
    store = opened(FaultyDisk(), durability="os")
    writer = Writer(store, ManualClock())
    seen: list[int] = []
    for number in range(count := 2 * UNFLUSHED_BATCH_MAX):
        # Four senders, because a heavy one gets only a few commands into each batch.
        writer.put(prepare(number), lambda _: seen.append(store.table.end), number % 4)
    await writer.close()
    assert seen == [UNFLUSHED_BATCH_MAX] * UNFLUSHED_BATCH_MAX + [count] * UNFLUSHED_BATCH_MAX


async def test_a_full_inbox_slows_new_messages_before_decisions() -> None:
    disk = SlowDisk()
    config = WriterConfig(inbox_max=8, messages_max=2, batch_max=100)
    writer = Writer(opened(disk), ManualClock(), config)
    for number in range(4):
        await held(writer, number)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    order: list[str] = []

    async def note(name: str, command: Prepare | End) -> None:
        await writer.submit(command)
        order.append(name)

    tasks = [asyncio.ensure_future(note(f"first{n}", prepare(100 + n))) for n in range(2)]
    await in_thread(disk.is_flushing)
    tasks += [asyncio.ensure_future(note(f"half{n}", prepare(200 + n))) for n in range(6)]
    await asyncio.sleep(0)
    # Two half messages are in the inbox and four wait outside. The decisions overtake them.
    tasks += [asyncio.ensure_future(note(f"end{n}", commit(n))) for n in range(4)]
    await asyncio.sleep(0)
    disk.may_flush.set()
    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
    ends = [order.index(f"end{n}") for n in range(4)]
    outside = [order.index(f"half{n}") for n in range(2, 6)]
    assert max(ends) < min(outside)
    await writer.close()


async def test_decisions_wait_too_when_the_inbox_is_full_of_them() -> None:
    disk = SlowDisk()
    config = WriterConfig(inbox_max=2, messages_max=1)
    writer = Writer(opened(disk), ManualClock(), config)
    for number in range(6):
        await held(writer, number)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    started = [asyncio.ensure_future(writer.submit(commit(number))) for number in range(2)]
    await in_thread(disk.is_flushing)
    more = [asyncio.ensure_future(writer.submit(commit(number))) for number in range(2, 6)]
    await asyncio.sleep(0)
    disk.may_flush.set()
    replies = [d.reply for d in await asyncio.gather(*started, *more)]
    assert all(isinstance(r, EndReply) and r.state is State.COMMITTED for r in replies)
    await writer.close()


async def test_waiting_bytes_are_bounded() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock(), WriterConfig(bytes_max=100))
    await held(writer, 0)
    before = log_flushes(disk)
    big = [Append(messages=(message(b"x" * 80),)) for _ in range(4)]
    decisions = await asyncio.wait_for(asyncio.gather(*map(writer.submit, big)), DEADLINE_S)
    offsets = [d.reply.queue_offsets[0] for d in decisions if isinstance(d.reply, Appended)]
    assert sorted(offsets) == [0, 1, 2, 3]
    # No two of them fit in the inbox, so each is its own batch.
    assert log_flushes(disk) - before == 4
    await writer.close()


async def test_a_message_larger_than_all_that_may_wait_is_taken_when_nothing_waits() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), WriterConfig(bytes_max=10))
    decision = await writer.submit(Append(messages=(message(b"x" * 80),)))
    assert isinstance(decision.reply, Appended)
    await writer.close()


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize(
    ("kind", "code"), [(DiskCall.FLUSH, errno.EIO), (DiskCall.WRITE, errno.ENOSPC)]
)
async def test_after_a_failed_write_the_store_stops_and_callers_get_unknown_outcomes(
    kind: DiskCall, code: int, together: int
) -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    known = await held(writer, 0)
    disk.fail_after(kind, 0, code, under="commitlog")
    results = await asyncio.gather(
        *(writer.submit(prepare(number)) for number in range(1, together + 1)),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [OutcomeUnknown] * together
    error = await writer.failed
    assert isinstance(error, OSError)
    assert error.errno == code
    with pytest.raises(Unavailable, match="store_failed"):
        await writer.submit(commit(known.half_offset))
    with pytest.raises(Unavailable, match="store_failed"):
        await writer.alone(lambda _store: None)
    after = Engine(disk.crash(nothing_survives))
    assert after.store.table.end >= 1


async def test_callers_that_wait_for_room_learn_of_a_failure() -> None:
    disk = SlowDisk()
    writer = Writer(opened(disk), ManualClock(), WriterConfig(inbox_max=2, messages_max=1))
    for number in range(4):
        await held(writer, number)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, under="commitlog")
    inside = [asyncio.ensure_future(writer.submit(commit(number))) for number in range(2)]
    await in_thread(disk.is_flushing)
    queued = [asyncio.ensure_future(writer.submit(commit(number))) for number in (2, 3)]
    outside = [asyncio.ensure_future(writer.submit(command)) for command in (prepare(9), commit(0))]
    await asyncio.sleep(0)
    disk.may_flush.set()
    results = await asyncio.gather(*inside, *queued, *outside, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown] * 2 + [Unavailable] * 4


async def test_a_checkpoint_is_taken_aside_while_commands_go_on() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk, checkpoint_bytes=4096, chunk_rows=8), ManualClock())
    for round_number in range(20):
        numbers = range(10 * round_number, 10 * round_number + 10)
        halves = await asyncio.gather(*(held(writer, number) for number in numbers))
        await asyncio.gather(*(writer.submit(commit(half.half_offset)) for half in halves))
    await writer.close()
    after = Engine(disk.crash(nothing_survives))
    assert after.found.frames == 0
    assert len(after.pull("orders")) == 200


async def test_a_failed_checkpoint_stops_the_store() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk, checkpoint_bytes=4096), ManualClock())
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, under="consumequeue")
    answered = 0
    while not writer.failed.done():
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await writer.submit(Append(messages=(message(b"x" * 500),)))
            answered += 1
        assert answered < 10_000
    assert answered > 0
    assert len(Engine(disk.crash(nothing_survives)).pull("orders")) >= answered


class SlowQueues(SlowDisk):
    """A disk that blocks checkpoints, but not commands, until the test releases them."""

    slow = "consumequeue"


async def test_work_alone_waits_for_one_checkpoint_not_for_all_that_follow() -> None:
    disk = SlowQueues()
    store = opened(disk, checkpoint_bytes=4096)
    writer = Writer(store, ManualClock())
    disk.may_flush.clear()
    big = Append(messages=(message(b"x" * 5_000),))
    await writer.submit(big)
    end = store.log.end
    seen = asyncio.ensure_future(writer.alone(lambda one: one.checkpointed))
    # The next checkpoint is already due when the current one ends.
    await writer.submit(big)
    disk.may_flush.set()
    assert await seen == end
    await writer.close()


async def test_work_alone_sees_only_what_is_durable_and_may_delete_log() -> None:
    disk = FaultyDisk()
    clock = ManualClock()
    store = opened(disk, segment_bytes_max=4096, retention_ms=1_000, copy_after_ms=1_000)
    writer = Writer(store, clock)
    for number in range(40):
        half = await held(writer, number)
        await writer.submit(commit(half.half_offset))
    clock.advance(seconds=10)
    waiting = [asyncio.ensure_future(held(writer, 1_000 + number)) for number in range(3)]
    removed = await writer.alone(lambda one: retain(one, clock.now_ms()))
    assert removed.segments > 0
    await asyncio.gather(*waiting)
    with pytest.raises(ZeroDivisionError):
        await writer.alone(lambda _store: 1 // 0)
    await held(writer, 2_000)
    await writer.close()


async def test_waiting_readers_are_told_which_queues_grew() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    grown: list[set[int]] = []
    writer.on_visible = grown.append
    half = await held(writer, 1)
    assert grown == []
    await writer.submit(commit(half.half_offset))
    assert grown == [{0}]
    await writer.close()


async def test_a_refusal_writes_nothing_and_is_answered() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    before = len(disk.journal)
    decision = await writer.submit(commit(7))
    assert decision.refused is not None
    assert decision.refused.code == "no_such_half_message"
    assert len(disk.journal) == before
    await writer.close()


async def test_closing_answers_what_was_submitted_and_refuses_what_comes_later() -> None:
    disk = SlowDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 0)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    tasks = [asyncio.ensure_future(held(writer, number)) for number in range(1, 4)]
    await in_thread(disk.is_flushing)
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="writer_closed"):
        await writer.submit(prepare(9))
    disk.may_flush.set()
    await closing
    assert all(task.done() for task in tasks)
    assert Engine(disk.crash(nothing_survives)).store.table.end == 4


async def test_a_caller_that_gives_up_does_not_hold_up_the_others() -> None:
    disk = SlowDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 0)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    flushing = [asyncio.ensure_future(held(writer, number)) for number in (1, 2)]
    await in_thread(disk.is_flushing)
    queued = [asyncio.ensure_future(held(writer, number)) for number in (3, 4)]
    await asyncio.sleep(0)
    flushing[0].cancel()
    queued[0].cancel()
    disk.may_flush.set()
    assert (await flushing[1]).count == 1
    assert (await queued[1]).count == 1
    await writer.close()


@pytest.mark.parametrize(
    "values",
    [{"inbox_max": 0}, {"batch_max": 0}, {"bytes_max": 0}, {"messages_max": 9, "inbox_max": 8}],
)
def test_impossible_limits_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(RequestRefused, match="bad_config"):
        WriterConfig(**values)
