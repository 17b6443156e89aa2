"""Requests of gRPC clients, as the benchmarks of the gRPC port send them."""

from __future__ import annotations

import time

from escrowmq.broker.grpc.names import timestamp
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcClientType, GrpcEncoding, GrpcMessageType

TOPIC = "order-paid"
#: What the pulls of harmful clients read; ``beside.py`` fills it before the abuse starts.
PULLED_TOPIC, PULLED_QUEUE = "pulled", 1
QUEUES = 8
BODY_BYTES = 300


def message(
    number: int,
    kind: int = GrpcMessageType.NORMAL,
    topic: str = TOPIC,
    body_bytes: int = BODY_BYTES,
) -> grpc.Message:
    """Return a message as the official Java client sends it."""
    system = grpc.SystemProperties(
        tag="paid",
        keys=[f"order-{number}"],
        message_id=f"01A0B1C2D3E4F500010000{number:010X}",
        body_encoding=GrpcEncoding.IDENTITY,
        message_type=kind,
        born_timestamp=timestamp(int(time.time() * 1_000)),
        born_host="bench-host",
        queue_id=number % QUEUES,
    )
    return grpc.Message(
        topic=grpc.Resource(name=topic), system_properties=system, body=b"x" * body_bytes
    )


def publishing(topic: str) -> grpc.TelemetryCommand:
    """Return the settings of a producer."""
    publishes = grpc.Publishing(topics=[grpc.Resource(name=topic)])
    settings = grpc.Settings(client_type=GrpcClientType.PRODUCER, publishing=publishes)
    return grpc.TelemetryCommand(settings=settings)


def subscribing(group: str) -> grpc.TelemetryCommand:
    """Return the settings of a push consumer."""
    entry = grpc.SubscriptionEntry(
        topic=grpc.Resource(name=TOPIC), expression=grpc.FilterExpression(type=1, expression="*")
    )
    subscribes = grpc.Subscription(group=grpc.Resource(name=group), subscriptions=[entry])
    settings = grpc.Settings(client_type=GrpcClientType.PUSH_CONSUMER, subscription=subscribes)
    return grpc.TelemetryCommand(settings=settings)
