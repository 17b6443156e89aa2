"""Push consumers, which leave the invisible time of their messages to the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.broker.grpc import renewing
from escrowmq.broker.grpc.renewing import HELD_MS_MAX, INVISIBLE_MS
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages as grpc
from tests.unit.broker.grpc_consuming import (
    NOT_FOUND,
    OK,
    ack,
    change,
    pass_time,
    receipt,
    receive,
    receiving,
    sent,
)
from tests.unit.broker.grpc_peer import GrpcPeer, HeldCall, message, subscribing
from tests.unit.broker.wire import (
    DEADLINE_S,
    clock_of,
    eventually,
    serving,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from escrowmq.broker.net.limits import Late

    Leave = Callable[[GrpcPeer, HeldCall], Awaitable[None]]


async def pushed(server: Server) -> tuple[GrpcPeer, HeldCall, grpc.Message]:
    peer = await sent(server)
    stream = await peer.tell(subscribing("readers", "orders"))
    (told,) = await receive(peer, auto_renew=True)
    assert told.system_properties.invisible_duration.seconds == INVISIBLE_MS // 1_000
    return peer, stream, told


async def say_goodbye(peer: GrpcPeer, stream: HeldCall) -> None:
    del stream
    await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())


async def lose_stream(peer: GrpcPeer, stream: HeldCall) -> None:
    del peer
    stream.cancel()


LEAVES = pytest.mark.parametrize("leave", [say_goodbye, lose_stream])


async def test_a_message_stays_invisible_while_its_client_is_online(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, told = await pushed(server)
        pass_time(server, 30 * INVISIBLE_MS)
        assert await receive(peer) == []
        assert (await ack(peer, receipt(told))).status.code == OK


async def test_a_message_comes_again_after_three_hours_at_the_latest(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        pass_time(server, HELD_MS_MAX + 1)
        assert len(await receive(peer)) == 1


async def test_the_messages_of_a_client_that_goes_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, stream, _ = await pushed(server)
        stream.cancel()
        pass_time(server, INVISIBLE_MS - 1)
        assert await receive(peer) == []
        pass_time(server, 2)
        assert len(await receive(peer)) == 1
        assert server.broker.telemetry is not None
        server.broker.telemetry.sweep()
        assert server.broker.telemetry.renewals.count("client-1") == 0


async def test_a_client_that_comes_back_keeps_its_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        stream.cancel()
        pass_time(server, INVISIBLE_MS // 2)
        await peer.tell(subscribing("readers", "orders"))
        pass_time(server, 10 * INVISIBLE_MS)
        assert await receive(peer) == []
        assert (await ack(peer, receipt(told))).status.code == OK


async def test_the_messages_of_a_client_that_says_goodbye_come_again_at_once(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 1


async def test_the_messages_of_a_silent_client_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, _, _ = await pushed(server)
        assert server.broker.telemetry is not None
        clock_of(server).advance(ms=121_000)
        server.broker.telemetry.sweep()
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 1


async def test_a_client_that_sets_the_time_itself_is_obeyed(tmp_path: Path) -> None:
    """A push consumer whose handler failed asks for the message again."""
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        await change(peer, receipt(told), 10_000)
        stream.cancel()
        pass_time(server, 10_001)
        (again,) = await receive(peer)
        assert again.system_properties.delivery_attempt == 2


async def test_many_messages_of_a_client_are_let_go_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "SLICE_MAX", 3)
    async with serving(tmp_path) as server:
        peer = await sent(server, 10)
        await peer.tell(subscribing("readers", "orders"))
        held = await receive(peer, auto_renew=True)
        assert len(held) == 10
        # One was acknowledged by another client meanwhile.
        await ack(peer.again("other"), receipt(held[4]))
        await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        for _ in range(10):
            await asyncio.sleep(0)
        pass_time(server, 1_001)
        assert len(await receive(peer)) == 9


async def test_without_settings_a_message_is_invisible_for_a_minute(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await sent(server)
        await receive(peer, auto_renew=True)
        pass_time(server, INVISIBLE_MS + 1)
        assert len(await receive(peer)) == 1


@LEAVES
async def test_a_client_that_leaves_gets_nothing_that_arrives_later(
    tmp_path: Path, leave: Leave
) -> None:
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        await ack(peer, receipt(told))
        polls = server.broker.popping.polls
        call = peer.begin("ReceiveMessage", receiving(20_000, auto_renew=True))
        await eventually(lambda: polls.waiting == 1)
        await leave(peer, stream)
        await asyncio.wait_for(call.ended, DEADLINE_S)
        assert (await call.take(grpc.ReceiveMessageResponse)).status.code == NOT_FOUND
        other = peer.again("other")
        await other.send(message("late", b"late"))
        assert [one.body for one in await receive(other)] == [b"late"]


@LEAVES
async def test_a_client_that_leaves_during_an_answer_holds_nothing(
    tmp_path: Path, leave: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[Late] = []
    monkeypatch.setattr(HeldCall, "is_any_behind", True)
    monkeypatch.setattr(HeldCall, "ask_for_turn", lambda _, late: turns.append(late))
    async with serving(tmp_path) as server:
        peer = await sent(server)
        stream = await peer.tell(subscribing("readers", "orders"))
        call = peer.begin("ReceiveMessage", receiving(auto_renew=True))
        await eventually(lambda: turns)
        await leave(peer, stream)
        while turns:
            turns.pop().take_turn(0)
        assert call.sent.qsize() == 3
        assert server.broker.telemetry is not None
        assert server.broker.telemetry.renewals.count("client-1") == 0
        monkeypatch.undo()
        pass_time(server, INVISIBLE_MS + 1)
        assert len(await receive(peer.again("other"))) == 1


async def test_a_client_comes_back_after_it_acknowledged_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, stream, told = await pushed(server)
        stream.cancel()
        assert (await ack(peer, receipt(told))).status.code == OK
        await peer.tell(subscribing("readers", "orders"))
        await peer.send(message("m9", b"next"))
        (told,) = await receive(peer, auto_renew=True)
        pass_time(server, 2 * INVISIBLE_MS)
        assert (await ack(peer, receipt(told))).status.code == OK
