"""Telemetry: settings both ways, live producers, and back-checks on the stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.grpc import telemetry
from escrowmq.broker.grpc.settings import TOPICS_MAX
from escrowmq.broker.net.taking import TAKEN_S_MAX
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcClientType
from tests.unit.broker.asking import ASK, begin, obey, producer, verdict
from tests.unit.broker.grpc_peer import (
    COMMIT,
    TRANSACTION,
    GrpcPeer,
    half,
    message,
    publishing,
    subscribing,
)
from tests.unit.broker.wire import DEADLINE_S, SEND, Peer, clock_of, eventually, serving, visible
from tests.unit.broker.wire import half as remoting_half

DUE_MS = 6_001

REFUSED = [
    grpc.Settings(),
    grpc.Settings(client_type=GrpcClientType.PRODUCER),
    grpc.Settings(client_type=GrpcClientType.PUSH_CONSUMER, publishing=grpc.Publishing()),
    grpc.Settings(client_type=GrpcClientType.PRODUCER, subscription=grpc.Subscription()),
    subscribing("readers", "orders", kind=GrpcClientType.LITE_PUSH_CONSUMER),
    subscribing("readers", "orders", kind=99),
    publishing("a b"),
    publishing(*[f"t{number}" for number in range(TOPICS_MAX + 1)]),
    subscribing("", "orders"),
    subscribing("a b", "orders"),
    subscribing("readers", "a b"),
]


async def test_a_producer_gets_the_settings_that_it_must_use(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server).open()
        assert call.events is not None
        said = grpc.TelemetryCommand(settings=publishing("orders"))
        call.events.on_message(said.SerializeToString())
        answer = await call.take(grpc.TelemetryCommand)
        assert answer.status.code == 20_000
        told = answer.settings
        assert told.client_type == GrpcClientType.PRODUCER
        assert [one.name for one in told.publishing.topics] == ["orders"]
        assert told.publishing.max_body_size == 4 * 1024 * 1024
        assert told.publishing.validate_message_type
        backoff = told.backoff_policy
        assert (backoff.max_attempts, backoff.exponential_backoff.multiplier) == (3, 2.0)
        assert backoff.exponential_backoff.initial.nanos == 10_000_000
        assert backoff.exponential_backoff.max.seconds == 1
        assert not told.metric.on


async def test_a_consumer_gets_the_settings_that_it_must_use(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server).open()
        assert call.events is not None
        said = grpc.TelemetryCommand(settings=subscribing("readers", "orders"))
        call.events.on_message(said.SerializeToString())
        told = (await call.take(grpc.TelemetryCommand)).settings
        assert told.WhichOneof("pub_sub") == "subscription"
        assert told.subscription.group.name == "readers"
        assert told.subscription.receive_batch_size == 32
        assert told.subscription.long_polling_timeout.seconds == 20
        assert not told.subscription.fifo
        assert told.backoff_policy.max_attempts == 17
        waits = [one.seconds for one in told.backoff_policy.customized_backoff.next]
        assert waits[:3] == [10, 30, 60]
        assert waits[-1] == 7_200
        # The group was created, and has a member.
        assert server.broker.catalog.group("readers") is not None
        online = server.broker.clients.consumers("readers")
        assert online is not None
        assert list(online.members) == ["client-1"]
        assert online.subscriptions["orders"].expression == "*"


@pytest.mark.parametrize("settings", REFUSED)
async def test_wrong_settings_end_the_stream(tmp_path: Path, settings: grpc.Settings) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server).open()
        assert call.events is not None
        call.events.on_message(grpc.TelemetryCommand(settings=settings).SerializeToString())
        status, text = await asyncio.wait_for(call.ended, DEADLINE_S)
        assert status == 3
        assert text
        assert server.broker.clients.producer_groups() == []


async def test_a_filter_in_sql_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        settings = subscribing("readers", "orders")
        settings.subscription.subscriptions[0].expression.type = 2
        call = GrpcPeer.of(server).open()
        assert call.events is not None
        call.events.on_message(grpc.TelemetryCommand(settings=settings).SerializeToString())
        status, text = await asyncio.wait_for(call.ended, DEADLINE_S)
        assert (status, "filter_unsupported" in text) == (3, True)


async def test_bytes_that_are_no_command_end_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server).open()
        assert call.events is not None
        call.events.on_message(b"\xff\xff\xff")
        assert (await asyncio.wait_for(call.ended, DEADLINE_S))[0] == 3


async def test_a_stream_without_a_client_id_is_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server, "").open()
        assert call.events is not None
        said = grpc.TelemetryCommand(settings=publishing("orders"))
        call.events.on_message(said.SerializeToString())
        status, text = await asyncio.wait_for(call.ended, DEADLINE_S)
        assert (status, "client_id_missing" in text) == (3, True)


async def test_unrequested_reports_of_a_client_are_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call = await GrpcPeer.of(server).produce("orders")
        assert call.events is not None
        for command in (
            grpc.TelemetryCommand(thread_stack_trace=grpc.ThreadStackTrace(nonce="1")),
            grpc.TelemetryCommand(verify_message_result=grpc.VerifyMessageResult(nonce="1")),
            grpc.TelemetryCommand(),
        ):
            call.events.on_message(command.SerializeToString())
        assert call.is_open


async def test_a_producer_is_asked_about_its_orphan_on_its_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders")
        (sent,) = (await peer.send(half(tag="paid", keys=["k"], users={"color": "red"}))).entries
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "asked"
        asked = (await stream.take(grpc.TelemetryCommand)).recover_orphaned_transaction_command
        assert asked.transaction_id == sent.transaction_id
        told = asked.message
        assert (told.topic.name, told.body) == ("orders", b"paid")
        assert dict(told.user_properties) == {"color": "red"}
        system = told.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == ("t1", "paid", ["k"])
        assert system.message_type == TRANSACTION
        answer = grpc.SendResultEntry(message_id="t1", transaction_id=asked.transaction_id)
        assert await peer.end(answer, COMMIT, source=2) == 20_000


async def test_a_producer_that_restarts_is_asked_about_its_orphans(tmp_path: Path) -> None:
    """Under the same topics, with another client id."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server, "before")
        stream = await peer.produce("orders")
        await peer.send(half())
        stream.cancel()
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "no_producer"
        later = await peer.again("after").produce("others", "orders")
        assert await obey(server, ASK) == "asked"
        command = await later.take(grpc.TelemetryCommand)
        assert command.WhichOneof("command") == "recover_orphaned_transaction_command"


async def test_a_sender_that_declared_no_topic_is_asked_all_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce()
        await peer.send(half())
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "asked"
        await stream.take(grpc.TelemetryCommand)


async def test_the_sender_is_asked_before_others_of_its_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server, "first")
        others = [await peer.again(f"other-{number}").produce("orders") for number in range(3)]
        stream = await peer.produce("orders")
        for number in range(3):
            await peer.send(half(f"t{number}", body=b"%d" % number))
        clock_of(server).advance(ms=DUE_MS)
        for number in range(3):
            assert await obey(server, ASK, number) == "asked"
            await stream.take(grpc.TelemetryCommand)
        assert all(other.sent.empty() for other in others)


async def test_producers_of_both_protocols_share_a_group(tmp_path: Path) -> None:
    """A gRPC client is asked about a half message of a remoting client of the same group."""
    async with serving(tmp_path) as server:
        remoting = await Peer.to(server.broker_address)
        await remoting.ask(SEND, remoting_half("t1"), b"x")
        await remoting.closed()
        stream = await GrpcPeer.of(server).produce("pay")
        clock_of(server).advance(ms=DUE_MS)
        assert await obey(server, ASK) == "asked"
        command = await stream.take(grpc.TelemetryCommand)
        asked = command.recover_orphaned_transaction_command
        assert asked.message.system_properties.message_id == "t1"
        online = await producer(server, "p1", group="pay")
        assert {one.client_id for one in server.broker.clients.producers("pay")} == {
            "client-1",
            "p1",
        }
        await online.closed()


async def test_a_client_that_does_not_read_was_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.broker.net.taking.TAKEN_S_MAX", TAKEN_S_MAX / 100)
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=DUE_MS)
        stream.unsent_bytes = 10
        assert await obey(server, ASK) == "busy"
        row = server.broker.store.core.half(0)
        assert row is not None
        assert row.checks_sent == 0
        stream.unsent_bytes = 0
        assert await obey(server, ASK) == "asked"
        assert await peer.end(sent, COMMIT) == 20_000
        assert [one.body for one in visible(server)] == [b"paid"]


async def test_a_client_that_goes_while_it_is_asked_was_not_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders")
        (sent,) = (await peer.send(half())).entries
        clock_of(server).advance(ms=DUE_MS)
        stream.unsent_bytes = 10
        told = begin(server, verdict(ASK))
        await eventually(lambda: not stream.sent.empty())
        stream.cancel()
        assert (await told).value == "no_producer"
        row = server.broker.store.core.half(0)
        assert row is not None
        assert row.checks_sent == 0
        assert await peer.end(sent, COMMIT) == 20_000
        assert [one.body for one in visible(server)] == [b"paid"]


async def test_a_closed_stream_is_no_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        stream = await GrpcPeer.of(server).produce("orders", "others")
        clients = server.broker.clients
        assert sorted(clients.producer_groups()) == ["orders", "others"]
        assert stream.events is not None
        stream.events.on_half_close()
        await eventually(lambda: clients.producer_groups() == [])


async def test_settings_that_come_again_replace_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.produce("orders", "others")
        await peer.tell(publishing("others", "more"), stream)
        assert sorted(server.broker.clients.producer_groups()) == ["more", "others"]


async def test_settings_with_another_group_leave_the_first_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        stream = await peer.tell(subscribing("readers", "orders"))
        await eventually(lambda: server.broker.clients.consumer_groups() == ["readers"])
        await peer.tell(subscribing("writers", "orders"), stream)
        await eventually(lambda: server.broker.clients.consumer_groups() == ["writers"])


async def test_a_client_that_reconnects_keeps_its_place(tmp_path: Path) -> None:
    """The broker may see the new stream before the old one closes."""
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        old = await peer.produce("orders")
        await peer.produce("orders")
        old.cancel()
        assert server.broker.clients.producer_groups() == ["orders"]


async def test_a_heartbeat_keeps_a_client_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.produce("orders")
        clock, clients = clock_of(server), server.broker.clients
        beat = grpc.HeartbeatRequest(client_type=GrpcClientType.PRODUCER)
        clock.advance(ms=100_000)
        assert (await peer.ask("Heartbeat", beat)).status.code == 20_000
        clock.advance(ms=100_000)
        server.broker.heartbeats.expire()
        assert clients.producer_groups() == ["orders"]
        clock.advance(ms=130_000)
        server.broker.heartbeats.expire()
        assert clients.producer_groups() == []
        # The stream is still open, so its next heartbeat makes it known again.
        assert (await peer.ask("Heartbeat", beat)).status.code == 20_000
        assert clients.producer_groups() == ["orders"]


async def test_a_heartbeat_without_settings_is_not_recognized(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await GrpcPeer.of(server).ask("Heartbeat", grpc.HeartbeatRequest())
        assert answer.status.code == 40_015


@pytest.mark.parametrize("settings", [publishing("a", "b"), subscribing("readers", "orders")])
async def test_a_client_that_says_goodbye_is_forgotten_everywhere(
    tmp_path: Path, settings: grpc.Settings
) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.tell(settings)
        clients = server.broker.clients
        assert clients.producer_groups() or clients.consumer_groups()
        answer = await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        assert answer.status.code == 20_000
        assert clients.producer_groups() == clients.consumer_groups() == []
        again = await peer.ask("NotifyClientTermination", grpc.NotifyClientTerminationRequest())
        assert again.status.code == 20_000


async def test_the_number_of_streams_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "SESSIONS_MAX", 1)
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.produce("orders")
        call = peer.again("client-2").open()
        assert call.events is not None
        said = grpc.TelemetryCommand(settings=publishing("orders"))
        call.events.on_message(said.SerializeToString())
        status, _ = await asyncio.wait_for(call.ended, DEADLINE_S)
        assert status == 3


async def test_a_group_that_may_not_be_created_has_no_member(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"auto_create_groups": False}) as server:
        await GrpcPeer.of(server).tell(subscribing("readers", "orders"))
        assert server.broker.clients.consumer_groups() == []


async def test_a_message_without_a_transaction_makes_no_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.produce()
        await peer.send(message())
        assert server.broker.clients.producer_groups() == []
