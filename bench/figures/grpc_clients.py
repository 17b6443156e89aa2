"""Many gRPC clients: memory of streams and of messages in flight, time of back-checks."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

from bench.figures.common import report
from bench.figures.grpc_requests import QUEUES, TOPIC, message, publishing, subscribing
from bench.figures.grpc_wire import WireClient
from escrowmq.broker.grpc.names import duration
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.enums import GrpcCode, GrpcMessageType
from escrowmq.protocol.native.headers import ByHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from tests.interop.escrow import Escrow

STREAMS = 5_000
TOPICS = 50
#: Connections whose answers are awaited together.
OPENED_AT_ONCE = 100
CHECKS = 1_000
CHECKS_PER_S = 100
IN_FLIGHT = 100_000
SENT_AT_ONCE = 500
RECEIVED = 32
INVISIBLE_MS = 3_600_000
MB = 1e6


def telemetry() -> None:
    """Report the memory of a broker that holds the telemetry streams of many producers."""
    with Escrow() as broker, ExitStack() as stack:
        before = broker.usage().anonymous_bytes
        began = time.perf_counter()
        for first in range(0, STREAMS, OPENED_AT_ONCE):
            clients = [
                WireClient(broker.grpc_address, f"bench-host@{number}@0@1b2c3d4e")
                for number in range(first, first + OPENED_AT_ONCE)
            ]
            for number, client in enumerate(clients, first):
                stack.callback(client.close)
                client.begin("Telemetry", publishing(f"topic-{number % TOPICS}"), is_stream=True)
            for client in clients:
                await_message(client)
        seconds = time.perf_counter() - began
        after = broker.usage()
    report(
        "grpc_telemetry_mb",
        after.anonymous_bytes / MB,
        "MB",
        wanted="<= 400",
        streams=STREAMS,
        bytes_each=round((after.anonymous_bytes - before) / STREAMS),
        opened_per_s=round(STREAMS / seconds),
    )


def await_message(client: WireClient) -> bytes:
    """Return the next message that the broker sends."""
    while True:
        for _, told in client.read():
            assert told is not None, "the broker ended a stream"
            return told


def checks() -> None:
    """Report how long a back-check takes from the verdict to its client, at 100 each second."""
    settings = {"transaction.checked_by": "pipeline"}
    with Escrow(settings=settings) as broker, NativeCalls(broker.broker_address) as calls:
        broker.create_topic(TOPIC, QUEUES, "TRANSACTION")
        sender = WireClient(broker.grpc_address, "bench-sender")
        offsets = [entry.offset for entry in sent(sender, CHECKS, GrpcMessageType.TRANSACTION)]
        producer = WireClient(broker.grpc_address, "bench-producer")
        producer.begin("Telemetry", publishing(TOPIC), is_stream=True)
        await_message(producer)
        waits_ms = []
        next_at = time.perf_counter()
        for offset in offsets:
            time.sleep(max(next_at - time.perf_counter(), 0))
            next_at += 1 / CHECKS_PER_S
            verdict = VerdictRow(offset, "ask", state=0, checks_sent=0, reason=None)
            began = time.perf_counter()
            (row,) = calls.call(NativeCode.OBEY_VERDICTS, ByHeader(by="bench"), [verdict]).rows
            command = grpc.TelemetryCommand.FromString(await_message(producer))
            waits_ms.append((time.perf_counter() - began) * 1e3)
            assert row.outcome == "asked", row
            assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
    waits_ms.sort()
    report(
        "grpc_check_p99_ms",
        waits_ms[int(len(waits_ms) * 0.99)],
        "ms",
        wanted="<= 50",
        p50_ms=round(statistics.median(waits_ms), 3),
        max_ms=round(waits_ms[-1], 3),
        checks=CHECKS,
        per_s=CHECKS_PER_S,
    )


def sent(
    client: WireClient, count: int, kind: int = GrpcMessageType.NORMAL
) -> list[grpc.SendResultEntry]:
    """Send messages; return what the broker answered to each."""
    entries: list[grpc.SendResultEntry] = []
    for first in range(0, count, SENT_AT_ONCE):
        numbers = range(first, min(first + SENT_AT_ONCE, count))
        request = grpc.SendMessageRequest(messages=[message(number, kind) for number in numbers])
        (answer,) = client.ask("SendMessage", request)
        entries += grpc.SendMessageResponse.FromString(answer).entries
    assert all(entry.status.code == GrpcCode.OK for entry in entries)
    return entries


def in_flight() -> None:
    """Report the memory of messages that consumers hold: set by themselves, or by the broker."""
    with Escrow(settings={"store.durability": "os"}) as broker:
        broker.create_topic(TOPIC, QUEUES)
        client = WireClient(broker.grpc_address, "bench-consumer")
        sent(client, IN_FLIGHT)
        # The first group fills the caches of what it reads.
        receive_all(client, "first", holds=False)
        for group, holds in (("simple", False), ("push", True)):
            stream = WireClient(broker.grpc_address, f"bench-{group}")
            stream.begin("Telemetry", subscribing(group), is_stream=True)
            await_message(stream)
            before = broker.usage().anonymous_bytes
            receive_all(stream, group, holds=holds)
            grown = broker.usage().anonymous_bytes - before
            report(
                "grpc_in_flight_bytes",
                grown / IN_FLIGHT,
                "bytes",
                wanted="<= 200",
                consumer=group,
                in_flight=IN_FLIGHT,
            )


def receive_all(client: WireClient, group: str, *, holds: bool) -> None:
    """Receive every message, and acknowledge none."""
    received = 0
    while received < IN_FLIGHT:
        request = grpc.ReceiveMessageRequest(
            group=grpc.Resource(name=group),
            message_queue=grpc.MessageQueue(topic=grpc.Resource(name=TOPIC), id=-1),
            filter_expression=grpc.FilterExpression(type=1, expression="*"),
            batch_size=RECEIVED,
            long_polling_timeout=duration(1_000),
            invisible_duration=None if holds else duration(INVISIBLE_MS),
            auto_renew=holds,
        )
        # A status comes first, and the time of the delivery last.
        got = len(client.ask("ReceiveMessage", request)) - 2
        assert got > 0, f"{received} of {IN_FLIGHT} messages"
        received += got
