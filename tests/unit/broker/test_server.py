"""Connections, routes and heartbeats, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker import server as servers
from escrowmq.broker.server import Server
from escrowmq.model.errors import RequestRefused, StoreUnusable
from escrowmq.protocol.remoting.admin_headers import RouteHeader
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import (
    ConsumerMembership,
    Heartbeat,
    ProducerMembership,
    SubscriptionBody,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import ConsumerGroupHeader, UnregisterHeader
from tests.unit.broker.wire import DEADLINE_S, SEND, Peer, eventually, sending, serving

LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP


def heartbeat(client_id: str, *topics: str, group: str = "shop") -> bytes:
    subscriptions = tuple(SubscriptionBody(topic=topic) for topic in topics)
    consumers = (ConsumerMembership(group=group, subscriptions=subscriptions),) if topics else ()
    producers = (ProducerMembership(group="pay"),)
    return encode_body(Heartbeat(client_id=client_id, producers=producers, consumers=consumers))


async def settled(server: Server, count: int) -> None:
    """Wait until this many producers are online."""
    await eventually(lambda: len(server.broker.clients.producers("pay")) == count)


# Routes


async def test_a_route_leads_to_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        names = await Peer.to(server.name_address)
        route = RequestCode.GET_ROUTEINFO_BY_TOPIC
        unknown = await names.ask(route, RouteHeader(topic="orders"))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        template = msgspec.json.decode((await names.ask(route, RouteHeader(topic="TBW102"))).body)
        assert template["queueDatas"][0]["perm"] == 7
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        found = msgspec.json.decode((await names.ask(route, RouteHeader(topic="orders"))).body)
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": server.broker_address}
        assert found["queueDatas"][0]["readQueueNums"] == 4
        cluster = await names.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        assert msgspec.json.decode(cluster.body)["clusterAddrTable"] == {
            "DefaultCluster": ["broker-a"]
        }
        topics = await names.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert "orders" in msgspec.json.decode(topics.body)["topicList"]


# Heartbeats


async def test_members_of_a_group_are_told_when_it_changes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        first, second = [await Peer.to(server.broker_address) for _ in range(2)]
        nobody = await first.ask(LIST, ConsumerGroupHeader(consumer_group="shop"))
        assert nobody.code == ResponseCode.SYSTEM_ERROR
        await first.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "orders"))
        await second.ask(RequestCode.HEART_BEAT, body=heartbeat("b", "orders"))
        for _ in range(2):
            told = await first.until(lambda frame: not frame.is_response)
            assert told.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        members = await first.ask(LIST, ConsumerGroupHeader(consumer_group="shop"))
        assert msgspec.json.decode(members.body) == {"consumerIdList": ["a", "b"]}
        assert server.broker.topics.get("%RETRY%shop") is not None
        assert "shop" in server.broker.catalog.groups
        second.close()
        assert (await first.until(lambda frame: not frame.is_response)).is_one_way
        left = await first.ask(
            RequestCode.UNREGISTER_CLIENT, UnregisterHeader(client_id="a", consumer_group="shop")
        )
        assert left.code == ResponseCode.SUCCESS
        assert server.broker.clients.consumer_groups() == []


async def test_a_producer_is_online_until_its_connection_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        assert server.broker.clients.producers("pay") == []
        await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("a"))
        await settled(server, 1)
        assert (await peer.ask(RequestCode.CHECK_CLIENT_CONFIG)).code == ResponseCode.SUCCESS
        peer.close()
        await settled(server, 0)


# Bad input


async def test_an_unknown_request_is_answered_as_such(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(9_999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert "9999" in answer.remark


async def test_a_request_without_its_fields_is_refused_and_the_connection_goes_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, None, b"x")
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert (await peer.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS


async def test_a_frame_beyond_16_mib_ends_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        bad, good = [await Peer.to(server.broker_address) for _ in range(2)]
        bad.write((16 * 1024 * 1024 + 1).to_bytes(4) + bytes(100))
        assert await bad.is_cut()
        assert (await good.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS


async def test_bytes_that_are_no_frame_end_the_connection_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        bad, good = [await Peer.to(server.broker_address) for _ in range(2)]
        bad.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await bad.is_cut()
        assert (await good.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS


async def test_one_connection_too_many_is_cut(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"connections_max": 1}) as server:
        first = await Peer.to(server.broker_address)
        await first.ask(9_999)
        second = await Peer.to(server.broker_address)
        assert await second.is_cut()
        assert (await first.ask(9_999)).is_response


# Starting


async def test_a_second_broker_on_one_directory_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with pytest.raises(StoreUnusable):
            async with serving(tmp_path):
                pass


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as server:
        port = int(server.broker_address.rpartition(":")[2])
        with pytest.raises(RequestRefused, match="address_unusable"):
            async with serving(tmp_path / "two", broker={"port": port}):
                pass


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
async def test_clients_must_be_told_an_address_that_they_can_use(tmp_path: Path, host: str) -> None:
    with pytest.raises(RequestRefused, match="host_illegal"):
        async with serving(tmp_path, broker={"host": host}):
            pass


# Failing


async def test_after_a_failed_write_it_says_so_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)

        def full() -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(server.broker.store.log, "write", full)
        assert (await peer.ask(SEND, sending(), b"x")).code != ResponseCode.SUCCESS
        later = await peer.ask(SEND, sending(), b"y")
        assert later.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert isinstance(await server.failed, OSError)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, sending(), b"z")).code == ResponseCode.SUCCESS


async def test_a_client_that_connects_during_the_stop_is_disconnected(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        host, _, port = server.broker_address.rpartition(":")
        # The kernel has connected this socket; the broker has not accepted it yet.
        late = await asyncio.to_thread(socket.create_connection, (host, int(port)))
        known = await Peer.to(server.broker_address)
        await known.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert not server._connections
    with late:
        assert await known.is_cut()
        assert await asyncio.to_thread(hears_the_end, late)


def hears_the_end(connected: socket.socket) -> bool:
    connected.settimeout(DEADLINE_S)
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("turns", range(5))
async def test_a_stop_leaves_no_socket_open_that_was_just_accepted(
    tmp_path: Path, turns: int
) -> None:
    with contextlib.ExitStack() as stack:
        async with serving(tmp_path) as server:
            host, _, port = server.broker_address.rpartition(":")
            client = socket.create_connection((host, int(port)), DEADLINE_S)
            stack.enter_context(client)
            for _ in range(turns):
                await asyncio.sleep(0)
        # The broker has closed its end.
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    gc.collect()


async def test_a_stop_does_not_wait_for_a_peer_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "HANG_UP_S", 0.05)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(queue_id=0), b"x" * 1_000_000)
        peer._writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = server._connections
        connection.send(b"\0" * 50_000_000)
        connection.flush()
        await server.stop()
        assert not connection.is_open
        monkeypatch.setattr(server, "stop", nothing)


async def nothing() -> None:
    """Replace `stop` of a server that is already stopped."""
