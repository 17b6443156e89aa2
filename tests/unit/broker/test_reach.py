"""Consumers of a restored broker: an offset beyond the fork returns to the first new message."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    QueryOffsetHeader,
    QueueHeader,
    UpdateOffsetHeader,
)
from tests.unit.broker.test_delivering import COMMITS, PULL, SUBSCRIBES, bodies, pulling, send
from tests.unit.broker.wire import Peer, facts, serving

UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
KNOWN = QueryOffsetHeader(consumer_group="shop", topic="orders", queue_id=1)


def committing(offset: int) -> UpdateOffsetHeader:
    return UpdateOffsetHeader(
        consumer_group="shop", topic="orders", queue_id=1, commit_offset=offset
    )


async def stored(peer: Peer) -> int:
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, KNOWN)
    return int(facts(answer)["offset"])


async def next_of(peer: Peer, offset: int, **fields: object) -> tuple[int, int]:
    """Pull; return the answer's code and the next offset."""
    answer = await peer.ask(PULL, pulling(offset, **fields))
    return answer.code, int(facts(answer)["nextBeginOffset"])


@pytest.fixture
async def restored(tmp_path: Path) -> Path:
    """Store whose queue has three messages; in the other history, it had ten."""
    old, copied = tmp_path / "old", tmp_path / "copied"
    async with serving(old) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b", "c")
    shutil.copytree(old, copied)
    async with serving(old) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, *(f"old {number}" for number in range(7)))
        assert await next_of(peer, 3) == (ResponseCode.SUCCESS, 10)
        await peer.ask(UPDATE, committing(10))
    # In a copy of the whole disk, offsets may be newer than the log.
    shutil.copy(old / "meta.db", copied / "meta.db")
    return copied


async def test_a_group_beyond_the_fork_reads_all_new_messages(restored: Path) -> None:
    """The group never read the new messages below its offset of the other history."""
    async with serving(restored) as server:
        peer = await Peer.to(server.broker_address)
        assert await stored(peer) == 3
        await send(peer, *(f"new {number}" for number in range(9)))
        # The queue is now longer than the consumer's offset.
        assert await next_of(peer, 10) == (ResponseCode.PULL_OFFSET_MOVED, 3)
        answer = await peer.ask(PULL, pulling(3))
        assert bodies(answer) == [f"new {number}" for number in range(9)]
        # From here on, 10 is an offset of this history.
        assert await next_of(peer, 10) == (ResponseCode.SUCCESS, 12)


async def test_a_commit_of_another_history_is_stored_as_the_fork(restored: Path) -> None:
    async with serving(restored) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, *(f"new {number}" for number in range(9)))
        await peer.ask(UPDATE, committing(1))
        await peer.ask(UPDATE, committing(10))
        assert await stored(peer) == 3
        await peer.ask(PULL, pulling(3, messages_max=4))
        await peer.ask(UPDATE, committing(7))
        assert await stored(peer) == 7
        # A late member of the group changes nothing.
        await peer.ask(UPDATE, committing(10))
        await next_of(peer, 7, sys_flag=SUBSCRIBES | COMMITS, commit_offset=12, messages_max=1)
        assert await stored(peer) == 7


async def test_no_offset_is_stored_beyond_the_end_of_its_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b")
        # The first pull makes the group.
        await peer.ask(PULL, pulling(0))
        await peer.ask(UPDATE, committing(99))
        assert await stored(peer) == 2
        await peer.ask(UPDATE, committing(0))
        await peer.ask(PULL, pulling(0, sys_flag=SUBSCRIBES | COMMITS, commit_offset=50))
        assert await stored(peer) == 2
        empty = msgspec.structs.replace(committing(5), queue_id=0)
        await peer.ask(UPDATE, empty)
        known = msgspec.structs.replace(KNOWN, queue_id=0)
        answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, known)
        assert facts(answer)["offset"] == "0"


async def test_a_group_that_asked_for_the_end_may_begin_there(restored: Path) -> None:
    async with serving(restored) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await send(peer, "new 1", "new 2")
        asked = QueueHeader(topic="orders", queue_id=1)
        answer = await peer.ask(RequestCode.GET_MAX_OFFSET, asked)
        assert facts(answer)["offset"] == "5"
        assert await next_of(peer, 5) == (ResponseCode.PULL_NOT_FOUND, 5)
        # The broker remembers the group, not the connection.
        assert await next_of(other, 5) == (ResponseCode.PULL_NOT_FOUND, 5)
        assert (await next_of(other, 5, consumer_group="stock"))[1] == 3


async def test_tools_look_wherever_they_like(restored: Path) -> None:
    async with serving(restored) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "new 1", "new 2", "new 3")
        answer = await peer.ask(PULL, pulling(5, consumer_group="TOOLS_CONSUMER"))
        assert bodies(answer) == ["new 3"]


async def test_a_restart_moves_no_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b", "c")
        assert await next_of(peer, 0) == (ResponseCode.SUCCESS, 3)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "d")
        assert await next_of(peer, 3) == (ResponseCode.SUCCESS, 4)
        assert await next_of(peer, 4) == (ResponseCode.PULL_NOT_FOUND, 4)
