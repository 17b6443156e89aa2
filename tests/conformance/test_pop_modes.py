"""Pop in order, and groups that change between pull and pop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import UpdateOffsetHeader
from escrowmq.transaction.pause_command import PauseGroup
from tests.conformance.pop_talk import (
    INVISIBLE_MS,
    ack,
    pop,
    send,
)
from tests.conformance.talk import COMMITS, SUBSCRIBES, beat, clock_of, pulling, put_group
from tests.unit.broker.wire import (
    Peer,
    eventually,
    facts,
    serving,
)


async def test_in_order_nothing_passes_a_message_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await put_group(peer, is_ordered=True)
        await send(peer, "a", "b", "c")
        first, second = await pop(peer, messages_max=2)
        assert await pop(other) == []
        waiting = asyncio.ensure_future(pop(other, wait_ms=15_000))
        await eventually(lambda: server.broker.popping.polls.waiting)
        # In any order; the queue goes on when all are acknowledged.
        assert await ack(peer, second) == ResponseCode.SUCCESS
        assert await ack(peer, first) == ResponseCode.SUCCESS
        (third,) = await waiting
        assert third.body == "c"
        await send(peer, "d")
        clock.advance(ms=INVISIBLE_MS)
        # The failing message comes again, before everything behind it.
        again = await pop(peer)
        assert [(one.body, one.message.reconsume_times) for one in again] == [("c", 1), ("d", 0)]


async def test_in_order_the_same_attempt_gets_the_same_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b", "c")
        first = await pop(peer, is_ordered=True, attempt_id="one", messages_max=2)
        clock_of(server).advance(ms=100)
        assert await pop(peer, is_ordered=True, attempt_id="two", messages_max=2) == []
        again = await pop(peer, is_ordered=True, attempt_id="one", messages_max=2)
        assert [one.body for one in again] == [one.body for one in first] == ["a", "b"]
        assert [one.message.reconsume_times for one in again] == [0, 0]
        assert [await ack(peer, one) for one in again] == [ResponseCode.SUCCESS] * 2


async def test_groups_that_pull_and_groups_that_pop_read_a_topic_side_by_side(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b")
        header = pulling(consumer_group="others")
        answer = await peer.ask(RequestCode.PULL_MESSAGE, header)
        assert len(decode_many(answer.body)) == 2
        assert [one.body for one in await pop(peer)] == ["a", "b"]


async def test_a_change_of_mode_starts_from_the_lower_position(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b", "c", "d")
        meta = server.broker.meta
        meta.set_offset("shop", "orders", 1, 1)
        # From pull to pop: "a" was consumed before.
        found = await pop(peer)
        assert [one.body for one in found] == ["b", "c", "d"]
        assert await ack(peer, found[1]) == ResponseCode.SUCCESS
        # From pop to pull: a client that continues too far is sent back.
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pulling(3))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert facts(answer)["nextBeginOffset"] == "1"
        assert await ack(peer, found[0]) == ResponseCode.NO_MESSAGE
        answer = await peer.ask(RequestCode.PULL_MESSAGE, pulling(1))
        assert len(decode_many(answer.body)) == 3
        header = pulling(4, sys_flag=SUBSCRIBES | COMMITS, commit_offset=4)
        await peer.ask(RequestCode.PULL_MESSAGE, header)
        assert meta.offsets["shop", "orders", 1] == 4
        # Back to pop: from where pop was, without what was acknowledged.
        assert [one.body for one in await pop(peer)] == ["b", "d"]


async def test_an_offset_that_is_committed_does_not_move_a_group_that_pops(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b")
        (first, _) = await pop(peer)
        update = UpdateOffsetHeader(
            consumer_group="shop", topic="orders", queue_id=1, commit_offset=2
        )
        await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        assert server.broker.meta.offsets["shop", "orders", 1] == 0
        assert await ack(peer, first) == ResponseCode.SUCCESS
        assert server.broker.meta.offsets["shop", "orders", 1] == 1


async def test_a_paused_group_gets_nothing_by_pop(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        pause = PauseGroup(name="shop", is_paused=True, by="me")
        await server.broker.writer.submit(pause)
        waiting = asyncio.ensure_future(pop(peer, wait_ms=15_000))
        await eventually(lambda: server.broker.popping.polls.waiting)
        resume = PauseGroup(name="shop", is_paused=False, by="me")
        await server.broker.writer.submit(resume)
        assert [one.body for one in await waiting] == ["a"]
