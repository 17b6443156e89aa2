"""A decision, a check and parking write small records; the half message stays where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.broker.write.writer import Writer
from escrowmq.protocol.message.message_views import HALF_TOPIC
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.admin_headers import ViewMessageHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.store.reading.reader import StoreReader
from escrowmq.testing import ManualClock
from escrowmq.transaction.states import State
from tests.unit.broker.asking import ASK, PARK, obey, producer, row
from tests.unit.broker.test_writer import SlowDisk, commit, in_thread, opened
from tests.unit.broker.test_writer import held as held_by
from tests.unit.broker.viewing import seen
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    Peer,
    ending,
    facts,
    half,
    serving,
    visible,
)

BODY = bytes(50_000)
#: A record of an event is far smaller than the message.
RECORD_BYTES_MAX = 1_000


async def held(server: Server) -> tuple[Peer, int]:
    """Hold a large half message of a live producer; return where it is in the log."""
    peer = await producer(server, "p")
    answer = await peer.ask(SEND, half("t"), BODY)
    return peer, int(facts(answer)["msgId"][16:], 16)


@pytest.mark.parametrize(("bits", "visible_count"), [(COMMIT, 1), (ROLLBACK, 0)])
async def test_a_decision_writes_a_small_record_and_no_second_message(
    tmp_path: Path, bits: int, visible_count: int
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), BODY)
        before = server.broker.store.log.end
        assert (await peer.ask(END, ending(answer, bits))).code == ResponseCode.SUCCESS
        assert 0 < server.broker.store.log.end - before < RECORD_BYTES_MAX
        at = int(facts(answer)["msgId"][16:], 16)
        assert [(one.log_offset, one.body) for one in visible(server)] == [
            (at, BODY)
        ] * visible_count


async def test_a_check_writes_a_small_record_and_the_half_message_stays(tmp_path: Path) -> None:
    """RocketMQ writes the half message again at each check."""
    async with serving(tmp_path) as server:
        peer, at = await held(server)
        for number in range(3):
            before = server.broker.store.log.end
            assert await obey(server, ASK, checks_sent=number) == "asked"
            assert 0 < server.broker.store.log.end - before < RECORD_BYTES_MAX
        assert (row(server).log_offset, row(server).checks_sent) == (at, 3)
        assert [one.log_offset for one in await seen(peer, HALF_TOPIC)] == [at]


async def test_parking_writes_a_small_record_and_the_half_message_stays(tmp_path: Path) -> None:
    """RocketMQ copies the half message, and loses it if the copy cannot be written."""
    async with serving(tmp_path) as server:
        peer, at = await held(server)
        before = server.broker.store.log.end
        assert await obey(server, PARK) == "parked"
        assert 0 < server.broker.store.log.end - before < RECORD_BYTES_MAX
        assert (row(server).state, row(server).log_offset) == (State.PARKED, at)
        view = ViewMessageHeader(log_offset=at)
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)
        assert [one.body for one in decode_many(answer.body)] == [BODY]


async def test_an_answered_decision_is_on_disk(tmp_path: Path) -> None:
    async with serving(tmp_path, store={"durability": "fsync"}) as server:
        peer = await Peer.to(server.broker_address)
        for number, bits in enumerate((COMMIT, ROLLBACK)):
            answer = await peer.ask(SEND, half(f"t{number}"), b"x")
            assert (await peer.ask(END, ending(answer, bits))).code == ResponseCode.SUCCESS
            store = server.broker.store
            assert store.durable_end == store.log.end


async def test_a_commit_is_neither_answered_nor_visible_before_its_flush() -> None:
    disk = SlowDisk()
    store = opened(disk)
    writer = Writer(store, ManualClock())
    for number in range(2):
        await held_by(writer, number)
    reader = StoreReader(store)
    disk.may_flush.clear()
    disk.is_flushing.clear()
    # The writer flushes several commands in a thread, which the disk can block.
    told = [asyncio.ensure_future(writer.submit(commit(number))) for number in range(2)]
    await in_thread(disk.is_flushing)
    assert not any(one.done() for one in told)
    assert reader.pull("orders", 0, 0, count_max=9, bytes_max=1_000).messages == []
    disk.may_flush.set()
    await asyncio.gather(*told)
    assert len(reader.pull("orders", 0, 0, count_max=9, bytes_max=1_000).messages) == 2
    await writer.close()
