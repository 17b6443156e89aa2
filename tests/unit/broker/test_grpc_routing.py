"""QueryRoute and QueryAssignment, and what every method has in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.grpc.place import GrpcPlace
from escrowmq.broker.grpc.service import METHODS
from escrowmq.model.catalog import MessageType
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.definitions import path_of
from tests.unit.broker.grpc_peer import (
    DELAY,
    FIFO,
    NORMAL,
    TRANSACTION,
    GrpcPeer,
    message,
)
from tests.unit.broker.wire import make_topic, serving, visible

READ, WRITE, READ_WRITE, NONE = 2, 3, 4, 1
EVERY = [NORMAL, FIFO, DELAY, TRANSACTION]


def asking(topic: str = "orders", space: str = "") -> grpc.QueryRouteRequest:
    return grpc.QueryRouteRequest(topic=grpc.Resource(name=topic, resource_namespace=space))


def assigning(topic: str = "orders", group: str = "readers") -> grpc.QueryAssignmentRequest:
    return grpc.QueryAssignmentRequest(
        topic=grpc.Resource(name=topic), group=grpc.Resource(name=group)
    )


async def test_a_route_names_each_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 3)
        answer = await GrpcPeer.of(server).ask("QueryRoute", asking())
        assert answer.status.code == 20_000
        queues = answer.message_queues
        assert [queue.id for queue in queues] == [0, 1, 2]
        assert {queue.permission for queue in queues} == {READ_WRITE}
        assert [list(queue.accept_message_types) for queue in queues] == [[NORMAL]] * 3
        broker = queues[0].broker
        assert (broker.name, broker.id) == ("broker-a", 0)
        assert broker.endpoints.scheme == 1
        (address,) = broker.endpoints.addresses
        assert (address.host, address.port) == ("127.0.0.1", 8_081)


async def test_a_route_names_an_ipv6_address_as_such(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        place = GrpcPlace(name="b", host="2001:db8::1", port=1)
        peer = GrpcPeer(server.broker.serve_grpc(place))
        endpoints = (await peer.ask("QueryRoute", asking())).message_queues[0].broker.endpoints
        assert (endpoints.scheme, endpoints.addresses[0].host) == (2, "2001:db8::1")


@pytest.mark.parametrize(
    ("perm", "told"),
    [(6, [READ_WRITE, WRITE]), (4, [READ, NONE]), (2, [WRITE, WRITE]), (0, [NONE, NONE])],
)
async def test_a_queue_has_the_permission_of_its_topic(
    tmp_path: Path, perm: int, told: list[int]
) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 2, read_queue_count=1, perm=perm)
        answer = await GrpcPeer.of(server).ask("QueryRoute", asking())
        assert [queue.permission for queue in answer.message_queues] == told


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("NORMAL", [NORMAL]),
        ("FIFO", [FIFO]),
        ("DELAY", [DELAY]),
        ("TRANSACTION", [TRANSACTION]),
        ("MIXED", EVERY),
        ("UNSPECIFIED", EVERY),
    ],
)
async def test_a_route_names_the_types_that_the_topic_takes(
    tmp_path: Path, kind: str, types: list[int]
) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 1, message_type=MessageType(kind))  # type: ignore[arg-type]  # a text
        answer = await GrpcPeer.of(server).ask("QueryRoute", asking())
        assert list(answer.message_queues[0].accept_message_types) == types


async def test_the_route_of_a_topic_that_sending_creates_takes_every_type(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"queue_count": 2}) as server:
        answer = await GrpcPeer.of(server).ask("QueryRoute", asking("new"))
        assert [list(one.accept_message_types) for one in answer.message_queues] == [EVERY] * 2
        assert server.broker.topics.get("new") is None


@pytest.mark.parametrize(
    ("topic", "code"),
    [("new", 40_402), ("a b", 40_002), ("", 40_002), ("RMQ_SYS_TRANS_HALF_TOPIC", 40_002)],
)
async def test_a_topic_without_a_route_has_a_code(tmp_path: Path, topic: str, code: int) -> None:
    async with serving(tmp_path, topics={"auto_create": False}) as server:
        answer = await GrpcPeer.of(server).ask("QueryRoute", asking(topic))
        assert answer.status.code == code
        assert not answer.message_queues


async def test_a_namespace_is_a_part_of_the_name(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        sent = message()
        sent.topic.resource_namespace = "shop"
        await peer.send(sent)
        assert len(visible(server, "shop%orders")) == 1
        answer = await peer.ask("QueryRoute", asking("orders", "shop"))
        assert list(answer.message_queues[0].accept_message_types) == [NORMAL]
        assert answer.message_queues[0].topic.resource_namespace == "shop"


async def test_a_consumer_receives_from_any_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 4)
        answer = await GrpcPeer.of(server).ask("QueryAssignment", assigning())
        (assignment,) = answer.assignments
        assert (assignment.message_queue.id, assignment.message_queue.permission) == (-1, READ)
        assert assignment.message_queue.broker.endpoints.addresses[0].port == 8_081


async def test_an_assignment_that_cannot_be_has_a_code(tmp_path: Path) -> None:
    changes = {"auto_create": False, "auto_create_groups": False}
    async with serving(tmp_path, topics=changes) as server:
        await make_topic(server, "orders", 1, perm=2)
        peer = GrpcPeer.of(server)
        assert (await peer.ask("QueryAssignment", assigning())).status.code == 40_403
        assert (await peer.ask("QueryAssignment", assigning("a b"))).status.code == 40_002
    async with serving(tmp_path, topics={"auto_create": False}) as server:
        peer = GrpcPeer.of(server)
        assert (await peer.ask("QueryAssignment", assigning("new"))).status.code == 40_402
        assert (await peer.ask("QueryAssignment", assigning())).status.code == 40_300
        assert (await peer.ask("QueryAssignment", assigning(group="a b"))).status.code == 40_003


@pytest.mark.parametrize("method", METHODS)
async def test_a_client_without_an_id_is_told_so(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path) as server:
        for client_id in ("", "x" * 256):
            call = GrpcPeer.of(server, client_id).begin_raw(method, b"")
            answer = await call.take(getattr(grpc, f"{method}Response"))
            assert answer.status.code == 40_017
            assert await call.ended == (0, "")


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_request_are_refused(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path) as server:
        call = GrpcPeer.of(server).begin_raw(method, b"\xff\xff\xff")
        assert (await call.take(getattr(grpc, f"{method}Response"))).status.code == 40_000


async def test_a_method_of_newer_definitions_is_refused_cleanly(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        # An action and a topic, whatever they mean.
        data = b"\x08\x02\x12\x08\x12\x06orders"
        call = GrpcPeer.of(server).begin_raw("SyncLiteSubscription", data)
        answer = await call.take(grpc.SyncLiteSubscriptionResponse)
        assert answer.status.code == 50_500


async def test_every_method_has_a_path(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        methods = GrpcPeer.of(server).methods
        assert methods.unary.keys() == {path_of(name) for name in METHODS}
        assert list(methods.streams) == [path_of("Telemetry")]


async def test_answers_are_counted_by_method_and_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = GrpcPeer.of(server)
        await peer.send(message())
        await peer.send(message(body=b""))
        rpcs = server.broker.counts.grpc_rpcs
        assert sum(sum(one.counts) for one in rpcs.latencies.values()) == 2
        assert rpcs.refused["body_empty"] == 1
