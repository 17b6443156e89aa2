"""A gRPC consumer: what it receives, and what it does with receipts."""

from __future__ import annotations

from typing import Any

from escrowmq.broker.grpc.names import duration
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages as grpc
from tests.unit.broker.grpc_peer import GrpcPeer, message
from tests.unit.broker.wire import (
    clock_of,
)

OK, NOT_FOUND, STALE = 20_000, 40_401, 40_013
READERS = grpc.Resource(name="readers")
ORDERS = grpc.Resource(name="orders")
INVISIBLE = 30_000


def receiving(wait_ms: int = 0, **fields: Any) -> grpc.ReceiveMessageRequest:  # noqa: ANN401
    queue_id = fields.pop("queue_id", -1)
    tags = fields.pop("tags", "*")
    values: dict[str, Any] = {
        "batch_size": 32,
        "invisible_duration": duration(INVISIBLE),
        **fields,
    }
    return grpc.ReceiveMessageRequest(
        group=READERS,
        message_queue=grpc.MessageQueue(topic=ORDERS, id=queue_id),
        filter_expression=grpc.FilterExpression(type=1, expression=tags),
        long_polling_timeout=duration(wait_ms),
        **values,
    )


async def receive(peer: GrpcPeer, wait_ms: int = 0, **fields: Any) -> list[grpc.Message]:  # noqa: ANN401
    """Return the received messages."""
    parts = await peer.all("ReceiveMessage", receiving(wait_ms, **fields))
    assert parts[0].status.code == (OK if len(parts) > 2 else NOT_FOUND)
    assert parts[-1].WhichOneof("content") == "delivery_timestamp"
    return [part.message for part in parts[1:-1]]


def receipt(told: grpc.Message) -> str:
    return told.system_properties.receipt_handle


async def ack(peer: GrpcPeer, *receipts: str, group: str = "readers") -> grpc.AckMessageResponse:
    entries = [
        grpc.AckMessageEntry(message_id=f"m{at}", receipt_handle=handle)
        for at, handle in enumerate(receipts)
    ]
    request = grpc.AckMessageRequest(group=grpc.Resource(name=group), topic=ORDERS, entries=entries)
    answer = await peer.ask("AckMessage", request)
    assert isinstance(answer, grpc.AckMessageResponse)
    return answer


async def change(peer: GrpcPeer, handle: str, ms: int) -> grpc.ChangeInvisibleDurationResponse:
    request = grpc.ChangeInvisibleDurationRequest(
        group=READERS, topic=ORDERS, receipt_handle=handle, invisible_duration=duration(ms)
    )
    answer = await peer.ask("ChangeInvisibleDuration", request)
    assert isinstance(answer, grpc.ChangeInvisibleDurationResponse)
    return answer


def pass_time(server: Server, ms: int) -> None:
    """Let time pass, and the broker look at it."""
    clock_of(server).advance(ms=ms)
    server.broker.popping.tick()


async def sent(server: Server, count: int = 1, **fields: Any) -> GrpcPeer:  # noqa: ANN401
    peer = GrpcPeer.of(server)
    await peer.send(*[message(f"m{at}", b"%d" % at, **fields) for at in range(count)])
    return peer
