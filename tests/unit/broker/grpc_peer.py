"""A gRPC client of a broker in this process: its calls reach the handlers without a socket."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, TypeVar, cast

from escrowmq.broker.grpc.names import timestamp
from escrowmq.broker.grpc.place import GrpcPlace
from escrowmq.broker.net.grpc_call import GrpcCall, GrpcMethods, StreamEvents
from escrowmq.broker.net.limits import TURN_S, Late
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.definitions import path_of
from escrowmq.protocol.grpc.enums import GrpcClientType, GrpcMessageType, GrpcResolution
from tests.unit.broker.wire import DEADLINE_S, T0

PLACE = GrpcPlace(name="broker-a", host="127.0.0.1", port=8_081)
NORMAL, FIFO = GrpcMessageType.NORMAL, GrpcMessageType.FIFO
DELAY, TRANSACTION = GrpcMessageType.DELAY, GrpcMessageType.TRANSACTION
COMMIT, ROLLBACK = GrpcResolution.COMMIT, GrpcResolution.ROLLBACK

MessageT = TypeVar("MessageT")
_ports = count(50_000)


class HeldConnection:
    """The connection of some calls."""

    def __init__(self) -> None:
        self.port = next(_ports)
        self.caller = None

    def close_soon(self) -> None:
        """Take no notice: no call of a test stays open."""


class HeldCall:
    """One call, which keeps what the handler sends."""

    def __init__(
        self, path: bytes, headers: dict[bytes, bytes], connection: HeldConnection
    ) -> None:
        self.path = path
        self.deadline: float | None = None
        #: How many more messages it takes before it is gone.
        self.takes = 10**9
        self.peer_host, self.peer_port = "127.0.0.1", connection.port
        self.local_host = "127.0.0.1"
        self.connection = connection
        self.is_open = True
        self.unsent_bytes = 0
        #: Messages that no test has taken yet.
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        #: The gRPC status and its text, once the call has ended.
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.events: StreamEvents | None = None
        self._headers = headers

    @property
    def has_room(self) -> bool:
        """A test reads everything."""
        return True

    @property
    def is_any_behind(self) -> bool:
        """No other call is being answered."""
        return False

    def ask_for_turn(self, late: Late) -> None:
        """Give the rest of an answer its turn."""
        loop = asyncio.get_running_loop()
        loop.call_soon(late.take_turn, loop.time() + TURN_S)

    def header(self, name: bytes) -> bytes | None:
        """Return a header of the request."""
        return self._headers.get(name)

    def answer(self, message: bytes) -> None:
        """Keep the answer of a unary call."""
        self.send(message)
        self.end()

    def send(self, message: bytes) -> bool:
        """Keep a message of a stream."""
        if self.is_open and not self.takes:
            self.is_open = False
        if self.is_open:
            self.takes -= 1
            self.sent.put_nowait(message)
        return self.is_open

    def end(self, status: int = 0, text: str = "") -> None:
        """End the call."""
        if self.is_open:
            self.is_open = False
            self.ended.set_result((status, text))
            if self.events is not None:
                self.events.on_closed()

    def cancel(self) -> None:
        """Let the client go away."""
        self.is_open = False
        if self.events is not None:
            self.events.on_closed()

    async def take(self, kind: type[MessageT]) -> MessageT:
        """Return the next message that the handler sends."""
        data = await asyncio.wait_for(self.sent.get(), DEADLINE_S)
        return kind.FromString(data)  # type: ignore[attr-defined, no-any-return]  # protobuf's


class GrpcPeer:
    """One client with one connection."""

    def __init__(self, methods: GrpcMethods, client_id: str = "client-1") -> None:
        self.methods = methods
        self.connection = HeldConnection()
        #: Of the calls that begin from now on.
        self.deadline: float | None = None
        self.headers = {b"x-mq-client-id": client_id.encode(), b"x-mq-language": b"PYTHON"}

    @classmethod
    def of(cls, server: Server, client_id: str = "client-1") -> GrpcPeer:
        """Let a broker serve gRPC, and return a client of it."""
        return cls(server.broker.serve_grpc(PLACE), client_id)

    def again(self, client_id: str) -> GrpcPeer:
        """Return another client of the same broker."""
        return GrpcPeer(self.methods, client_id)

    def begin(self, method: str, request: grpc.GrpcMessage, takes: int = 10**9) -> HeldCall:
        """Begin a call with a complete request, which takes this many messages."""
        return self.begin_raw(method, request.SerializeToString(), takes)

    def begin_raw(self, method: str, data: bytes, takes: int = 10**9) -> HeldCall:
        """Begin a call with these bytes."""
        path = path_of(method)
        call = HeldCall(path, self.headers, self.connection)
        call.takes, call.deadline = takes, self.deadline
        call.events = self.methods.unary[path](cast("GrpcCall", call), data)
        return call

    async def ask(self, method: str, request: grpc.GrpcMessage) -> Any:  # noqa: ANN401 - by method
        """Return the answer to a unary call."""
        call = self.begin(method, request)
        return await call.take(getattr(grpc, f"{method}Response"))

    async def all(self, method: str, request: grpc.GrpcMessage) -> list[Any]:
        """Return all messages of a streamed answer."""
        call = self.begin(method, request)
        assert await asyncio.wait_for(call.ended, DEADLINE_S) == (0, "")
        return [
            await call.take(getattr(grpc, f"{method}Response")) for _ in range(call.sent.qsize())
        ]

    def open(self) -> HeldCall:
        """Open a telemetry stream."""
        path = path_of("Telemetry")
        call = HeldCall(path, self.headers, self.connection)
        call.events = self.methods.streams[path](cast("GrpcCall", call))
        return call

    async def tell(self, settings: grpc.Settings, call: HeldCall | None = None) -> HeldCall:
        """Send settings on a stream, and take the answer."""
        call = call or self.open()
        assert call.events is not None
        call.events.on_message(grpc.TelemetryCommand(settings=settings).SerializeToString())
        answer = await call.take(grpc.TelemetryCommand)
        assert answer.status.code == 20_000
        return call

    async def produce(self, *topics: str) -> HeldCall:
        """Become a live producer of these topics."""
        return await self.tell(publishing(*topics))

    async def send(self, *messages: grpc.Message) -> grpc.SendMessageResponse:
        """Send messages."""
        sent = await self.ask("SendMessage", grpc.SendMessageRequest(messages=messages))
        assert isinstance(sent, grpc.SendMessageResponse)
        return sent

    async def end(
        self, sent: grpc.SendResultEntry, resolution: int, topic: str = "orders", source: int = 1
    ) -> int:
        """End a transaction; return the code of the answer."""
        answer = await self.ask(
            "EndTransaction",
            grpc.EndTransactionRequest(
                topic=grpc.Resource(name=topic),
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                resolution=resolution,
                source=source,
            ),
        )
        return int(answer.status.code)


def publishing(*topics: str) -> grpc.Settings:
    """Return the settings of a producer."""
    return grpc.Settings(
        client_type=GrpcClientType.PRODUCER,
        publishing=grpc.Publishing(topics=[grpc.Resource(name=topic) for topic in topics]),
    )


def subscribing(
    group: str, *topics: str, kind: int = GrpcClientType.PUSH_CONSUMER
) -> grpc.Settings:
    """Return the settings of a consumer."""
    return grpc.Settings(
        client_type=kind,
        subscription=grpc.Subscription(
            group=grpc.Resource(name=group),
            subscriptions=[
                grpc.SubscriptionEntry(
                    topic=grpc.Resource(name=topic),
                    expression=grpc.FilterExpression(type=1, expression="*"),
                )
                for topic in topics
            ],
        ),
    )


def message(
    message_id: str = "m1",
    body: bytes = b"paid",
    topic: str = "orders",
    kind: int = NORMAL,
    **system: Any,  # noqa: ANN401 - fields of the system properties
) -> grpc.Message:
    """Return a message as an official client sends it."""
    users = system.pop("users", {})
    return grpc.Message(
        topic=grpc.Resource(name=topic),
        user_properties=users,
        system_properties=grpc.SystemProperties(
            message_id=message_id,
            message_type=kind,
            **{"born_timestamp": timestamp(T0 - 5), "queue_id": 1, **system},
        ),
        body=body,
    )


def half(message_id: str = "t1", **fields: Any) -> grpc.Message:  # noqa: ANN401
    """Return a half message."""
    return message(message_id, kind=TRANSACTION, **fields)
