"""A gRPC client of a broker over a real connection, with gRPC's own library."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from escrowmq.broker.grpc.names import duration
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages
from escrowmq.protocol.grpc.definitions import path_of
from tests.unit.broker.grpc_peer import publishing
from tests.unit.broker.wire import DEADLINE_S

OK = 20_000
REFUSED = 42_800
"""The code of a decision that contradicts the first one."""
INVALID_ID = 40_008
NOT_FOUND = 40_401
CLIENT, SERVER_CHECK = 1, 2
"""Sources of a decision: the application, or the answer to a back-check."""
#: A port for gRPC, which brokers of other tests do not open.
WITH_GRPC = {"grpc_port": 0}
#: Without it, all channels of the process to one address share a connection.
_UNSHARED_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


class Telemetry:
    """The telemetry stream of a client."""

    def __init__(self, call: Any) -> None:  # noqa: ANN401 - has no types
        self.call = call

    async def tell(self, settings: messages.Settings) -> messages.Settings:
        """Send settings; return those that the broker answers."""
        await self.call.write(messages.TelemetryCommand(settings=settings).SerializeToString())
        answer = await self.read()
        assert answer.WhichOneof("command") == "settings"
        assert answer.status.code == OK
        return answer.settings

    async def read(self) -> messages.TelemetryCommand:
        """Return the next command of the broker."""
        data = await self.call.read()
        assert isinstance(data, bytes), "the broker ended the stream"
        return messages.TelemetryCommand.FromString(data)

    async def check(self) -> messages.RecoverOrphanedTransactionCommand:
        """Return the next back-check."""
        command = await self.read()
        assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
        return command.recover_orphaned_transaction_command

    async def status(self) -> int:
        """Return gRPC's status of a stream that the broker ended."""
        return int((await self.call.code()).value[0])

    def close(self) -> None:
        """End the stream without a goodbye."""
        self.call.cancel()


class GrpcClient:
    """The calls of one client."""

    def __init__(self, channel: Any, client_id: str) -> None:  # noqa: ANN401 - has no types
        self.channel = channel
        self.metadata = (("x-mq-client-id", client_id), ("x-mq-language", "PYTHON"))

    async def ask(self, method: str, request: messages.GrpcMessage) -> Any:  # noqa: ANN401
        """Return the answer to a unary call."""
        data = await self.channel.unary_unary(path_of(method))(
            request.SerializeToString(), metadata=self.metadata, timeout=DEADLINE_S
        )
        return getattr(messages, f"{method}Response").FromString(data)

    def open(self) -> Telemetry:
        """Open a telemetry stream."""
        call = self.channel.stream_stream(path_of("Telemetry"))
        return Telemetry(call(metadata=self.metadata, timeout=DEADLINE_S))

    async def produce(self, *topics: str) -> Telemetry:
        """Become a producer that declares these topics."""
        stream = self.open()
        await stream.tell(publishing(*topics))
        return stream

    async def send(self, *sent: messages.Message) -> list[messages.SendResultEntry]:
        """Send messages, which the broker accepts."""
        answer = await self.ask("SendMessage", messages.SendMessageRequest(messages=sent))
        assert answer.status.code == OK
        return list(answer.entries)

    async def end(
        self,
        transaction_id: str,
        resolution: int,
        *,
        topic: str = "orders",
        message_id: str = "",
        source: int = CLIENT,
    ) -> int:
        """End a transaction; return the code of the answer."""
        request = messages.EndTransactionRequest(
            topic=messages.Resource(name=topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=resolution,
            source=source,
        )
        return int((await self.ask("EndTransaction", request)).status.code)

    async def receive(self, topic: str = "orders") -> list[messages.Message]:
        """Receive the messages that a consumer group can see now."""
        request = messages.ReceiveMessageRequest(
            group=messages.Resource(name="readers"),
            message_queue=messages.MessageQueue(topic=messages.Resource(name=topic), id=-1),
            filter_expression=messages.FilterExpression(type=1, expression="*"),
            batch_size=32,
            invisible_duration=duration(60_000),
            long_polling_timeout=duration(0),
        )
        call = self.channel.unary_stream(path_of("ReceiveMessage"))(
            request.SerializeToString(), metadata=self.metadata, timeout=DEADLINE_S
        )
        parts = [messages.ReceiveMessageResponse.FromString(data) async for data in call]
        assert parts[0].status.code in {OK, NOT_FOUND}
        return [part.message for part in parts if part.WhichOneof("content") == "message"]


@asynccontextmanager
async def connected(server: Server, client_id: str = "client-1") -> AsyncIterator[GrpcClient]:
    """Connect a client to a broker."""
    async with grpc.aio.insecure_channel(
        server.grpc_address, options=_UNSHARED_CONNECTION
    ) as channel:
        yield GrpcClient(channel, client_id)
