"""Many commands of one request, fed to a writer as it has room."""

from __future__ import annotations

import asyncio
import errno

import pytest

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write import bulk, pace, questions
from escrowmq.broker.write.bulk import Bulk, Ends
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import OutcomeUnknown, Unavailable
from escrowmq.testing import FaultyDisk, ManualClock
from escrowmq.testing.faulty_disk import DiskCall
from escrowmq.transaction.commands import Command, Decision, HoldReply
from tests.unit.broker.test_writer import held, log_flushes, opened, prepare

SMALL = WriterConfig(messages_max=2, inbox_max=3)


async def done(writer: Writer, *commands: Command) -> Ends:
    told: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()
    Bulk(writer, commands, told.set_result).start()
    return await told


def offsets(ends: Ends) -> list[int]:
    replies = [end.reply for end in ends if isinstance(end, Decision)]
    return [reply.half_offset for reply in replies if isinstance(reply, HoldReply)]


async def test_all_are_told_together_in_their_order() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), SMALL)
    ends = await done(writer, *map(prepare, range(9)))
    assert offsets(ends) == list(range(9))
    assert await done(writer) == []
    await writer.close()


async def test_a_slice_shares_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "SLICE_MAX", 5)
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 100)
    before = log_flushes(disk)
    assert len(offsets(await done(writer, *map(prepare, range(15))))) == 15
    assert log_flushes(disk) - before == 3
    await writer.close()


async def test_bulk_work_waits_while_the_inbox_is_full() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), SMALL)
    others: Ends = []
    for number in (100, 101):
        writer.put(prepare(number), others.append)
    assert len(offsets(await done(writer, prepare(0)))) == 1
    assert len(others) == 2
    await writer.close()


async def test_after_a_failure_each_command_says_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "SLICE_MAX", 2)
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 100)
    disk.fail_after(DiskCall.FLUSH, 1, errno.EIO, under="commitlog")
    ends = await done(writer, *map(prepare, range(6)))
    kinds = [type(end) for end in ends]
    assert kinds == [Decision] * 2 + [OutcomeUnknown] * 2 + [Unavailable] * 2
    await writer.close()


async def test_a_question_is_answered_between_two_batches() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), WriterConfig(inbox_max=2, messages_max=2))
    seen: list[tuple[int, bool]] = []
    store = writer._store

    def look() -> None:
        seen.append((store.table.end, store.log.end == store.durable_end))

    told: Ends = []
    writer.put(prepare(0), told.append)
    writer.between(look)
    writer.between(look)
    with pytest.raises(Unavailable, match="inbox_full"):
        writer.between(look)
    await writer.close()
    # One question is answered before the batch, the other after it.
    assert seen == [(0, True), (1, True)]
    with pytest.raises(Unavailable, match="writer_closed"):
        writer.between(look)


async def test_questions_rest_while_clients_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "REST", 2**40)
    writer = Writer(opened(FaultyDisk()), ManualClock())
    seen: list[str] = []
    writer.between(lambda: seen.append("before"))
    writer.put(prepare(0), lambda _end: None)
    writer.between(lambda: seen.append("beside"))
    for number in range(3):
        await held(writer, number)
    # The second question rests, and the batches do not wait for it.
    assert seen == ["before"]
    # The writer now believes that no client is sending.
    monkeypatch.setattr(pace, "IN_USE_S", 0)
    writer.between(lambda: seen.append("after"))
    writer._questions._end_rest()
    await writer.close()
    assert seen == ["before", "beside", "after"]


async def test_questions_are_not_forgotten_when_the_store_fails() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    await held(writer, 0)
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO, under="commitlog")
    seen: list[object] = []
    told: Ends = []
    for number in (1, 2):
        writer.put(prepare(number), told.append)
    writer.between(lambda: seen.append(writer._store.failure))
    writer.between(lambda: seen.append(writer._store.failure))
    await writer.failed
    assert seen[0] is None
    assert seen[1] is writer._store.failure
    await writer.close()
