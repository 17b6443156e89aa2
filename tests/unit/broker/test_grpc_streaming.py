"""Answers of many messages wait for clients that do not read, and share the event loop's time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from escrowmq.broker.config import BrokerConfig
from escrowmq.broker.grpc.streaming import stream
from escrowmq.broker.net.grpc_call import GrpcCall, GrpcMethods
from escrowmq.broker.net.grpc_connection import GrpcConnection
from escrowmq.broker.net.grpc_door import GrpcDoor
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.broker.net.listening import bound_socket
from escrowmq.protocol.http2.frames import WINDOW_MAX, rst_stream, window_update
from escrowmq.protocol.http2.violations import Http2Error
from tests.unit.broker.grpc_echo import openings_with
from tests.unit.broker.http2_peer import Http2Peer
from tests.unit.broker.wire import eventually

MANY = "/test.Streaming/Many"
MESSAGES = 100
MESSAGE = bytes(10_000)
SLOW_BYTES = 100_000
#: What HTTP/2 lets a server send before a client grants more.
WINDOW = 65_535


class Streaming:
    """A service whose answers have many messages, and how many of them were made."""

    def __init__(self) -> None:
        self.port = 0
        self.made = self.left = 0
        limits = GrpcLimits(slow_bytes=SLOW_BYTES)
        methods = GrpcMethods(unary={MANY.encode(): self._answer}, streams={})
        self.door = GrpcDoor(methods, limits, openings_with(None, ConnectionLimits(BrokerConfig())))

    def _answer(self, call: GrpcCall, _message: bytes) -> None:
        stream(call, self._messages())

    def _messages(self) -> Iterator[bytes]:
        try:
            for _ in range(MESSAGES):
                self.made += 1
                yield MESSAGE
        finally:
            self.left += 1

    @property
    def connection(self) -> GrpcConnection:
        (connection,) = self.door.connections
        return connection


@asynccontextmanager
async def streaming() -> AsyncIterator[tuple[Streaming, Http2Peer]]:
    """Serve, and connect a client."""
    service = Streaming()
    bound = bound_socket("127.0.0.1", 0)
    service.door.start(bound)
    service.port = bound.getsockname()[1]
    peer = await Http2Peer.to(service)
    try:
        yield service, peer
    finally:
        peer.writer.close()
        await service.door.close(1.0)


async def test_an_answer_waits_until_its_client_reads() -> None:
    async with streaming() as (service, peer):
        stream_id = peer.call(path=MANY)
        await eventually(lambda: service.made and not service.connection.has_room)
        await peer.until(lambda: len(peer.answers[stream_id].data) == WINDOW)
        assert service.made <= (WINDOW + SLOW_BYTES) // len(MESSAGE) + 2
        grant = WINDOW_MAX - WINDOW
        peer.send(window_update(0, grant) + window_update(stream_id, grant))
        await peer.until(lambda: peer.answers[stream_id].has_ended)
        assert service.made == MESSAGES
        assert peer.answers[stream_id].status == "0"
        assert len(peer.answers[stream_id].data) == MESSAGES * (len(MESSAGE) + 5)


async def test_an_answer_goes_on_when_another_one_that_nobody_read_is_over() -> None:
    async with streaming() as (service, peer):
        unread = peer.call(path=MANY)
        await eventually(lambda: service.made and not service.connection.has_room)
        other = peer.call(path=MANY)
        await eventually(lambda: len(service.connection._streams.calls) == 2)
        before = service.made
        peer.send(rst_stream(unread, Http2Error.CANCEL))
        await eventually(lambda: service.made > before + 1)
        peer.send(window_update(0, WINDOW_MAX - WINDOW))
        peer.send(window_update(other, WINDOW_MAX - WINDOW))
        await peer.until(lambda: peer.answers[other].has_ended)
        assert peer.answers[other].status == "0"
        assert service.left == 2


async def test_a_client_that_vanishes_ends_its_waiting_answers() -> None:
    async with streaming() as (service, peer):
        peer.call(path=MANY)
        await eventually(lambda: service.made and not service.connection.has_room)
        peer.writer.transport.abort()
        await eventually(lambda: service.left == 1)
        assert service.made < MESSAGES


async def test_an_answer_sends_at_least_one_message_in_each_turn() -> None:
    async with streaming() as (service, peer):
        peer.send(window_update(0, WINDOW_MAX - WINDOW))
        turns = service.door.shared.turns
        taken: list[int] = []

        class Behind:
            """Another connection that is always behind."""

            def take_turn(self, until: float) -> None:
                del until
                taken.append(service.made)
                if not service.left:
                    turns.ask(self)

        turns.ask(Behind())
        stream_id = peer.call(path=MANY)
        peer.send(window_update(stream_id, WINDOW_MAX - WINDOW))
        await peer.until(lambda: peer.answers[stream_id].has_ended)
        # The other connection had its turns between those of the answer.
        assert len({made for made in taken if 0 < made < MESSAGES}) > 1
