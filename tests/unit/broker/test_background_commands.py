"""Commands that settle undecided transactions join the batches of clients."""

from __future__ import annotations

import asyncio

import pytest

from escrowmq.broker.write import writer as writing
from escrowmq.broker.write.inbox import is_background
from escrowmq.broker.write.pace import BackgroundPace
from escrowmq.broker.write.writer import Writer
from escrowmq.model.resolution import Resolution
from escrowmq.testing import FaultyDisk, ManualClock
from escrowmq.transaction.commands import CheckSent, Command, End, Verdict, VerdictKind
from escrowmq.transaction.states import State
from tests.unit.broker.test_writer import commit, held, log_flushes, opened, prepare

DEADLINE_S = 20


def used_writer(disk: FaultyDisk) -> Writer:
    """Return a writer whose clients send messages all the time."""
    writer = Writer(opened(disk), ManualClock())
    writer.pace = BackgroundPace(now=lambda: 1.0, used=lambda: 0.0)
    writer.pace.note_sent()
    return writer


def answer(half_offset: int) -> End:
    """Return a producer's answer to a back-check."""
    return End(half_offset=half_offset, resolution=Resolution.COMMIT, by="p", from_check=True)


def put(writer: Writer, command: Command) -> asyncio.Future[object]:
    """Give a command to the writer; return the future of its end."""
    end: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    writer.put(command, end.set_result)
    return end


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (answer(0), True),
        (CheckSent(half_offset=0, client="c"), True),
        (
            Verdict(
                half_offset=0,
                kind=VerdictKind.ASK,
                state=State.PREPARED,
                checks_sent=0,
                by="broker",
                reason="",
            ),
            True,
        ),
        (commit(0), False),
        (prepare(0), False),
    ],
)
def test_commands_of_settling_are_in_the_background(command: Command, *, expected: bool) -> None:
    assert is_background(command) is expected


async def test_answers_to_checks_share_the_flush_of_the_next_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "JOIN_S", DEADLINE_S)
    disk = FaultyDisk()
    writer = used_writer(disk)
    halves = [(await held(writer, number)).half_offset for number in range(3)]
    before = log_flushes(disk)
    ends = [put(writer, answer(half)) for half in halves]
    # Several turns of the event loop, each of which would have begun a batch.
    for _ in range(5):
        await asyncio.sleep(0)
    assert log_flushes(disk) == before
    assert not any(end.done() for end in ends)
    await put(writer, prepare(3))
    assert all(end.done() for end in ends)
    assert log_flushes(disk) == before + 1
    await writer.close()


async def test_an_answer_to_a_check_is_written_although_no_message_follows() -> None:
    disk = FaultyDisk()
    writer = used_writer(disk)
    half = (await held(writer, 0)).half_offset
    before = log_flushes(disk)
    async with asyncio.timeout(DEADLINE_S):
        await put(writer, answer(half))
    assert log_flushes(disk) == before + 1
    await writer.close()


async def test_without_senders_an_answer_to_a_check_is_written_at_once() -> None:
    disk = FaultyDisk()
    writer = Writer(opened(disk), ManualClock())
    half = (await held(writer, 0)).half_offset
    assert not writer.pace.is_in_use
    before = log_flushes(disk)
    end = put(writer, answer(half))
    for _ in range(2):
        await asyncio.sleep(0)
    assert end.done()
    assert log_flushes(disk) == before + 1
    await writer.close()


async def test_a_writer_that_closes_writes_the_answers_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "JOIN_S", DEADLINE_S)
    writer = used_writer(FaultyDisk())
    half = (await held(writer, 0)).half_offset
    end = put(writer, answer(half))
    await writer.close()
    assert end.done()
