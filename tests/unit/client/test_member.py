from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.net.connection import ClientConnection as ServedConnection
from escrowmq.broker.server import Server
from escrowmq.client.network import member as members
from escrowmq.client.network.connection import BrokerConnection
from escrowmq.client.network.member import Member
from escrowmq.model.errors import Unavailable
from escrowmq.protocol.remoting.admin_headers import RunningInfoHeader
from escrowmq.protocol.remoting.client_bodies import ConsumerMembership, SubscriptionBody
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import ConsumerGroupHeader
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_request
from tests.unit.broker.wire import LOOPBACK, Peer, eventually, serving


@asynccontextmanager
async def joined(server: Server) -> AsyncIterator[Member]:
    member = Member(server.name_address, client_id="me")
    member.producer_groups.add("pay")
    await member.start()
    try:
        yield member
    finally:
        await member.close()


def producers(server: Server) -> list[str]:
    return [client.client_id for client in server.broker.clients.producers("pay")]


async def test_a_client_is_known_before_it_sends_anything(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with joined(server):
            await eventually(lambda: producers(server) == ["me"])
        assert producers(server) == []


async def test_a_new_group_is_told_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, joined(server) as member:
        await eventually(lambda: producers(server))
        member.consuming["ship"] = ConsumerMembership(
            group="ship", subscriptions=(SubscriptionBody(topic="orders"),)
        )
        await member.beat()
        assert server.broker.clients.consumer_groups() == ["ship"]


async def test_a_client_comes_back_by_itself_after_the_broker_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "RETRY_MAX_S", 0.1)
    async with serving(tmp_path) as server:
        name_port, port = (
            int(address.rpartition(":")[2])
            for address in (server.name_address, server.broker_address)
        )
        member = Member(server.name_address, client_id="me")
        member.producer_groups.add("pay")
        await member.start()
        await eventually(lambda: producers(server))
    async with serving(tmp_path, broker={"name_port": name_port, "port": port}) as server:
        await eventually(lambda: producers(server) == ["me"])
        await member.close()
    assert LOOPBACK.port == 0


async def test_without_a_name_server_it_does_not_start() -> None:
    member = Member("127.0.0.1:1")
    with pytest.raises(Unavailable, match="name_server_unreachable"):
        await member.start()
    await member.close()


async def test_brokers_ask_and_only_what_is_understood_is_heard(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def hear(_connection: BrokerConnection, frame: RemotingFrame) -> None:
        heard.append(frame.body)
        raise ValueError("a handler that fails must not end the connection")

    async with serving(tmp_path) as server, joined(server) as member:
        member.handlers[RequestCode.NOTIFY_CONSUMER_IDS_CHANGED] = hear
        await eventually(lambda: producers(server))
        (client,) = server.broker.clients.producers("pay")
        for code, body in ((220, b"odd"), (40, b"first"), (40, b"second")):
            header = ConsumerGroupHeader(consumer_group="ship")
            client.connection.send(
                encode_request(code, 1, header=header, body=body, is_one_way=True)
            )
        await eventually(lambda: heard == [b"first", b"second"])


async def test_a_tool_is_told_at_once_what_a_client_does_not_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, joined(server) as member:
        await eventually(lambda: producers(server))
        member.consuming["ship"] = ConsumerMembership(
            group="ship", subscriptions=(SubscriptionBody(topic="orders"),)
        )
        await member.beat()
        tool = await Peer.to(server.broker_address)
        header = RunningInfoHeader(consumer_group="ship", client_id="me")
        answer = await tool.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "SDK" in answer.remark


async def test_goodbye_is_said_after_every_heartbeat_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with threads could process the heartbeat last, and would still list the client."""
    async with serving(tmp_path) as server, joined(server) as member:
        await eventually(lambda: producers(server) == ["me"])
        handle, heard = server.broker.handle, asyncio.Queue[RemotingFrame]()
        codes: list[int] = []

        def slow(connection: ServedConnection, frame: RemotingFrame) -> None:
            codes.append(frame.code)
            if frame.code == RequestCode.HEART_BEAT:
                heard.put_nowait(frame)
                asyncio.get_running_loop().call_later(0.05, handle, connection, frame)
            else:
                handle(connection, frame)

        monkeypatch.setattr(server.broker, "handle", slow)
        beating = asyncio.ensure_future(member.beat())
        await heard.get()
        beating.cancel()
        await member.close()
        await member.beat()
        # The member may also have sent a periodic heartbeat.
        *before, last = codes
        assert set(before) == {RequestCode.HEART_BEAT}
        assert last == RequestCode.UNREGISTER_CLIENT
        assert producers(server) == []
