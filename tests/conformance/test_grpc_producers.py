"""Producers of 5.x clients: their topics, their heartbeats, and the checks on their streams."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.grpc.names import duration
from escrowmq.broker.grpc.settings import TOPICS_MAX
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.grpc.enums import GrpcClientType
from escrowmq.protocol.remoting.admin_headers import ProducerGroupHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.conformance.grpc_talk import OK, SERVER_CHECK, WITH_GRPC, GrpcClient, connected
from tests.conformance.talk import clock_of
from tests.unit.broker.asking import ASK, obey, row
from tests.unit.broker.grpc_peer import COMMIT, half, publishing, subscribing
from tests.unit.broker.wire import Peer, eventually, serving

DUE_MS = 6_001
INVALID_ARGUMENT = 3


async def online(peer: Peer, topic: str) -> list[str]:
    """Return the clients that a tool sees as producers of a topic."""
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    answer = await peer.ask(code, ProducerGroupHeader(producer_group=topic))
    if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
        return []
    assert answer.code == ResponseCode.SUCCESS
    return [one["clientId"] for one in msgspec.json.decode(answer.body)["connectionSet"]]


async def goodbye(client: GrpcClient) -> int:
    """Tell the broker that a client ends; return the code of the answer."""
    request = messages.NotifyClientTerminationRequest()
    answer = await client.ask("NotifyClientTermination", request)
    return int(answer.status.code)


# Topics.


async def test_a_client_is_a_producer_of_each_topic_that_it_declares(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        tool = await Peer.to(server.broker_address)
        stream = await client.produce("orders")
        assert await online(tool, "orders") == ["client-1"]
        assert await online(tool, "stock") == []
        told = await stream.tell(publishing("orders", "stock", "bills"))
        assert [one.name for one in told.publishing.topics] == ["orders", "stock", "bills"]
        for topic in ("orders", "stock", "bills"):
            assert await online(tool, topic) == ["client-1"]


async def test_topics_that_are_declared_later_replace_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        tool = await Peer.to(server.broker_address)
        stream = await client.produce("orders", "stock")
        await stream.tell(publishing("bills", "stock"))
        assert await online(tool, "bills") == await online(tool, "stock") == ["client-1"]
        assert await online(tool, "orders") == []


async def test_a_client_is_not_asked_about_a_topic_that_it_no_longer_declares(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        tool = await Peer.to(server.broker_address)
        stream = await client.produce("orders", "stock")
        await client.send(half())
        await stream.tell(publishing("stock"))
        assert await online(tool, "orders") == []
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "no_producer"
        await stream.tell(publishing("orders"))
        assert await obey(server, ASK) == "asked"


async def test_one_heartbeat_keeps_a_client_in_all_of_its_topics(tmp_path: Path) -> None:
    """RocketMQ's proxy sends its broker a heartbeat for each 100 topics."""
    topics = [f"topic-{number}" for number in range(TOPICS_MAX)]
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = await client.produce(*topics)
        clock, clients = clock_of(server), server.broker.clients
        for _ in range(3):
            clock.advance(ms=100_000)
            beat = messages.HeartbeatRequest(client_type=GrpcClientType.PRODUCER)
            assert (await client.ask("Heartbeat", beat)).status.code == OK
            server.broker.heartbeats.expire()
        assert sorted(clients.producer_groups()) == sorted(topics)
        clock.advance(ms=130_000)
        server.broker.heartbeats.expire()
        assert clients.producer_groups() == []
        stream.close()


async def test_a_client_that_says_goodbye_is_no_longer_a_producer_of_any_topic(
    tmp_path: Path,
) -> None:
    """RocketMQ's proxy removes it from the first of its topics only."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        tool = await Peer.to(server.broker_address)
        await client.produce("orders", "stock", "bills")
        assert await online(tool, "bills") == ["client-1"]
        assert await goodbye(client) == OK
        for topic in ("orders", "stock", "bills"):
            assert await online(tool, topic) == []


# Checks.


async def test_a_silent_producer_is_asked_on_its_stream_and_its_commit_is_received(
    tmp_path: Path,
) -> None:
    """The broker checks by itself, at the age that the message names."""
    waits = half(orphaned_transaction_recovery_duration=duration(10_000))
    policy = {"checked_by": "broker"}
    async with (
        serving(tmp_path, broker=WITH_GRPC, policy=policy) as server,
        connected(server) as client,
    ):
        stream = await client.produce("orders")
        (sent,) = await client.send(waits)
        clock_of(server).advance(ms=9_999)
        await server.broker.rounds.run()
        assert row(server).checks_sent == 0
        clock_of(server).advance(ms=1)
        await server.broker.rounds.run()
        asked = await stream.check()
        assert asked.transaction_id == sent.transaction_id
        assert asked.message.system_properties.message_id == "t1"
        assert await client.receive() == []
        assert await client.end(asked.transaction_id, COMMIT, source=SERVER_CHECK) == OK
        (received,) = await client.receive()
        assert (received.body, received.system_properties.message_id) == (b"paid", "t1")


async def test_a_producer_that_declared_no_topic_is_asked_after_its_first_half_message(
    tmp_path: Path,
) -> None:
    """RocketMQ's proxy knows the topic once the client sends its settings again."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        tool = await Peer.to(server.broker_address)
        stream = await client.produce()
        assert await online(tool, "orders") == []
        (sent,) = await client.send(half())
        assert await online(tool, "orders") == ["client-1"]
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "asked"
        assert (await stream.check()).transaction_id == sent.transaction_id


# Settings.


async def test_settings_are_always_answered(tmp_path: Path) -> None:
    """The official Python client waits for the answer without a limit."""
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = client.open()
        for settings in (
            publishing(),
            publishing("orders"),
            publishing("orders"),
            publishing("orders", "stock"),
        ):
            told = await stream.tell(settings)
            assert told.WhichOneof("pub_sub") == "publishing"
        async with connected(server, "client-2") as consumer:
            told = await consumer.open().tell(subscribing("readers", "orders"))
            assert told.WhichOneof("pub_sub") == "subscription"


@pytest.mark.parametrize(
    "settings",
    [messages.Settings(), publishing("a b"), subscribing("", "orders")],
    ids=["no kind", "topic", "group"],
)
async def test_settings_that_are_refused_end_the_stream_with_a_status(
    tmp_path: Path, settings: messages.Settings
) -> None:
    async with serving(tmp_path, broker=WITH_GRPC) as server, connected(server) as client:
        stream = client.open()
        command = messages.TelemetryCommand(settings=settings)
        await stream.call.write(command.SerializeToString())
        assert await stream.status() == INVALID_ARGUMENT
        await eventually(lambda: server.broker.clients.producer_groups() == [])
