"""A stock gRPC channel whose calls a user signs, and an example of each method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc

from escrowmq.broker.grpc.transaction_ids import TransactionIds
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.grpc.definitions import path_of
from escrowmq.protocol.grpc.enums import GrpcCode
from escrowmq.protocol.grpc.messages import Resource
from escrowmq.protocol.signing import grpc as signing
from tests.unit.broker.access_cases import MEMBER, PUB, SUB, USES_TOPIC
from tests.unit.broker.access_world import SECRET

HALVES = Resource(name="halves")
DECIDES = "Pub Group:halves"
STREAMED = ("ReceiveMessage", "PullMessage")
TOPIC, GROUP = Resource(name="orders"), Resource(name="billing")
QUEUE = messages.MessageQueue(topic=TOPIC, id=0)


class GrpcCase(NamedTuple):
    """The fields of a request, and the grants that it needs."""

    fields: Mapping[str, Any]
    grants: tuple[str, ...]


def sent_message(topic: Resource = TOPIC, kind: int = 1, key: str = "k1") -> messages.Message:
    """A message as an SDK sends it."""
    properties = messages.SystemProperties(message_id=key, message_type=kind)
    return messages.Message(topic=topic, system_properties=properties, body=b"1")


CONSUMER = (SUB, MEMBER)
GRPC_CASES: Mapping[str, GrpcCase] = {
    "QueryRoute": GrpcCase({"topic": TOPIC}, (USES_TOPIC,)),
    "Heartbeat": GrpcCase({}, ()),
    "SendMessage": GrpcCase({"messages": [sent_message()]}, (PUB,)),
    "QueryAssignment": GrpcCase({"topic": TOPIC, "group": GROUP}, CONSUMER),
    "ReceiveMessage": GrpcCase({"message_queue": QUEUE, "group": GROUP, "batch_size": 1}, CONSUMER),
    "AckMessage": GrpcCase({"topic": TOPIC, "group": GROUP}, CONSUMER),
    "ForwardMessageToDeadLetterQueue": GrpcCase({"topic": TOPIC, "group": GROUP}, CONSUMER),
    "PullMessage": GrpcCase({"message_queue": QUEUE, "group": GROUP, "batch_size": 1}, CONSUMER),
    "UpdateOffset": GrpcCase({"message_queue": QUEUE, "group": GROUP}, CONSUMER),
    "GetOffset": GrpcCase({"message_queue": QUEUE, "group": GROUP}, CONSUMER),
    "QueryOffset": GrpcCase({"message_queue": QUEUE}, (USES_TOPIC,)),
    "EndTransaction": GrpcCase({"topic": HALVES, "resolution": 1}, (DECIDES,)),
    "NotifyClientTermination": GrpcCase({}, ()),
    "ChangeInvisibleDuration": GrpcCase({"topic": TOPIC, "group": GROUP}, CONSUMER),
    "RecallMessage": GrpcCase({"topic": TOPIC}, (PUB,)),
    "SyncLiteSubscription": GrpcCase({}, ()),
    "Telemetry": GrpcCase({}, CONSUMER),
}


def metadata_of(user: str, secret: str = SECRET, client_id: str = "c1") -> list[tuple[str, str]]:
    """The metadata of a call; without a user it is not signed."""
    date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = [("x-mq-client-id", client_id), ("x-mq-date-time", date_time)]
    if user:
        header = signing.header_of(user, secret.encode(), date_time)
        signed.append(("authorization", header))
    return signed


class Caller:
    """A stock channel."""

    def __init__(
        self, address: str, user: str, secret: str = SECRET, client_id: str = "c1"
    ) -> None:
        # Each channel has a connection of its own.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self._metadata = metadata_of(user, secret, client_id)

    async def code(self, name: str, fields: Mapping[str, Any]) -> int:
        """Call a method; return RocketMQ's code, or for a stream that ends, gRPC's."""
        if name == "Telemetry":
            return await self._telemetry()
        response = getattr(messages, f"{name}Response")
        request = getattr(messages, f"{name}Request", response)
        data = request(**fields).SerializeToString()
        path = path_of(name).decode()
        if name in STREAMED:
            call = self.channel.unary_stream(path)(data, metadata=self._metadata, timeout=20)
            return int(response.FromString(await call.read()).status.code)
        answer = await self.channel.unary_unary(path)(data, metadata=self._metadata, timeout=20)
        return int(response.FromString(answer).status.code)

    async def _telemetry(self) -> int:
        subscription = messages.Subscription(
            group=GROUP, subscriptions=[messages.SubscriptionEntry(topic=TOPIC)]
        )
        settings = messages.Settings(subscription=subscription, client_type=3)
        command = messages.TelemetryCommand(settings=settings).SerializeToString()
        path = path_of("Telemetry").decode()
        call = self.channel.stream_stream(path)(metadata=self._metadata, timeout=20)
        try:
            await call.write(command)
            answer = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            answer = grpc.aio.EOF
        if answer is grpc.aio.EOF:
            return -int((await call.code()).value[0])
        return int(GrpcCode.OK)

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()


def transaction_id_of(server: Server) -> str:
    """The transaction id that the sender of the newest half message was told."""
    core = server.broker.store.core
    stored = core.half(core.table.end - 1)
    assert stored is not None
    ids = TransactionIds(server.broker.key)
    return ids.make(core.lineage.epoch, stored.half_offset, stored.log_offset)
