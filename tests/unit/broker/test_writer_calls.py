"""The writer's callback interface, for callers that cannot wait."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from escrowmq.broker.config import WriterConfig
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.store.store import Store
from escrowmq.testing import FaultyDisk, ManualClock
from escrowmq.transaction.commands import Decision, EndReply, HoldReply
from tests.unit.broker.test_writer import commit, held, opened, prepare


async def test_a_caller_that_cannot_wait_is_told_later_or_refused_without_room() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock(), WriterConfig(messages_max=2, inbox_max=3))
    told: list[Decision | BaseException] = []
    first = await held(writer, 0)
    for number in (1, 2):
        writer.put(prepare(number), told.append)
    with pytest.raises(Unavailable, match="inbox_full"):
        writer.put(prepare(3), told.append)
    writer.put(commit(first.half_offset), told.append)
    with pytest.raises(Unavailable, match="inbox_full"):
        writer.put(commit(first.half_offset), told.append)
    assert told == []
    await writer.close()
    replies = [end.reply for end in told if isinstance(end, Decision)]
    # The writer takes decisions first.
    assert [type(reply) for reply in replies] == [EndReply, HoldReply, HoldReply]
    with pytest.raises(Unavailable, match="writer_closed"):
        writer.put(prepare(4), told.append)


async def test_an_error_that_was_told_is_gone_without_the_collector() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())

    def refuse(_store: Store) -> None:
        raise RequestRefused("no_messages")

    gone: list[weakref.ref[RequestRefused]] = []
    gc.disable()
    try:
        try:
            await writer.alone(refuse)
        except RequestRefused as error:
            gone.append(weakref.ref(error))
        await asyncio.sleep(0)
        assert [one() for one in gone] == [None]
    finally:
        gc.enable()
    await writer.close()


async def test_a_caller_that_gives_up_its_turn_alone_does_no_harm() -> None:
    writer = Writer(opened(FaultyDisk()), ManualClock())
    gone = asyncio.ensure_future(writer.alone(lambda store: store.log.end))
    await asyncio.sleep(0)
    gone.cancel()
    await held(writer, 1)
    assert not writer.failed.done()
    await writer.close()
