"""A bare HTTP/2 client that sends any frame it likes, for tests of the gRPC door."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import hpack

from escrowmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    PREFACE,
    SETTINGS_ACK,
    FrameKind,
    Http2Setting,
    frame,
    settings_frame,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD
from tests.unit.broker.grpc_echo import ECHO

PATIENCE_S = 10.0


class HasPort(Protocol):
    """A service in this process."""

    port: int


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


@dataclass
class Answer:
    """What came back on one stream."""

    fields: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    has_ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str | None:
        return self.fields.get("grpc-status")

    @property
    def message(self) -> bytes:
        return self.data[MESSAGE_HEAD.size :]


class Http2Peer:
    """One connection; it reads only when it is asked to wait for something."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.answers: dict[int, Answer] = defaultdict(Answer)
        self.frames: list[Frame] = []
        self.goaways: list[tuple[int, int]] = []
        self.is_gone = False
        self.next_id = 1
        self._buffer = b""

    @classmethod
    async def to(
        cls, service: HasPort, settings: dict[Http2Setting, int] | None = None
    ) -> Http2Peer:
        """Connect, and exchange settings."""
        peer = cls(*await asyncio.open_connection("127.0.0.1", service.port))
        peer.send(PREFACE + settings_frame(settings or {}))
        await peer.until(lambda: any(one.kind == FrameKind.SETTINGS for one in peer.frames))
        peer.send(SETTINGS_ACK)
        peer.encoder.header_table_size = 0
        return peer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def put(self, kind: FrameKind, flags: int, stream_id: int, payload: bytes = b"") -> None:
        self.send(frame(kind, flags, stream_id, payload))

    def headers(
        self,
        path: str = ECHO,
        *,
        flags: int = 0,
        extra: tuple[tuple[str, str], ...] = (),
        content_type: str = "application/grpc",
        method: str = "POST",
    ) -> int:
        """Open a stream; return its id."""
        stream_id, self.next_id = self.next_id, self.next_id + 2
        block = self.encoder.encode(
            [
                (":method", method),
                (":scheme", "http"),
                (":path", path),
                (":authority", "test"),
                ("te", "trailers"),
                ("content-type", content_type),
                *extra,
            ]
        )
        self.put(FrameKind.HEADERS, END_HEADERS | flags, stream_id, block)
        return stream_id

    def message(self, stream_id: int, message: bytes, flags: int = 0) -> None:
        """Send one message, in as few frames as possible."""
        data = MESSAGE_HEAD.pack(0, len(message)) + message
        last = (len(data) - 1) // FRAME_BYTES_DEFAULT
        for number in range(last + 1):
            piece = data[number * FRAME_BYTES_DEFAULT : (number + 1) * FRAME_BYTES_DEFAULT]
            self.put(FrameKind.DATA, flags if number == last else 0, stream_id, piece)

    def call(self, message: bytes = b"", path: str = ECHO) -> int:
        """Send a whole unary request; return its stream."""
        stream_id = self.headers(path)
        self.message(stream_id, message, END_STREAM)
        return stream_id

    async def until(self, is_so: object) -> None:
        """Read until something is so, or the connection is closed."""
        assert callable(is_so)
        async with asyncio.timeout(PATIENCE_S):
            while not (is_so() or self.is_gone):
                await self._read()

    async def _read(self) -> None:
        try:
            data = await self.reader.read(1 << 16)
        except ConnectionError:
            data = b""
        self.is_gone = not data
        self._buffer += data
        while len(self._buffer) >= FRAME_HEAD_BYTES:
            word, flags, stream_id = FRAME_HEAD.unpack_from(self._buffer)
            end = FRAME_HEAD_BYTES + (word >> 8)
            if len(self._buffer) < end:
                break
            payload = self._buffer[FRAME_HEAD_BYTES:end]
            self._buffer = self._buffer[end:]
            self._note(Frame(word & 0xFF, flags, stream_id, payload))

    def _note(self, one: Frame) -> None:
        self.frames.append(one)
        answer = self.answers[one.stream_id]
        match one.kind:
            case FrameKind.HEADERS:
                fields = self.decoder.decode(one.payload, raw=True)
                answer.fields.update((name.decode(), value.decode()) for name, value in fields)
                answer.has_ended = bool(one.flags & END_STREAM)
            case FrameKind.DATA:
                answer.data += one.payload
                answer.has_ended = bool(one.flags & END_STREAM)
            case FrameKind.RST_STREAM:
                answer.reset = int.from_bytes(one.payload)
            case FrameKind.GOAWAY:
                last, error = int.from_bytes(one.payload[:4]), int.from_bytes(one.payload[4:8])
                self.goaways.append((last, error))

    async def answer(self, stream_id: int) -> Answer:
        """Wait for the end of an answer."""
        found = self.answers[stream_id]
        await self.until(lambda: found.has_ended or found.reset is not None)
        return found

    async def gone(self) -> int | None:
        """Wait until the connection is closed; return the error of the last GOAWAY."""
        await self.until(lambda: False)
        assert self.is_gone
        await self.close()
        return self.goaways[-1][1] if self.goaways else None

    async def pong(self, payload: bytes = b"12345678") -> None:
        """Send a PING and wait for its answer: then everything before it is handled."""
        self.put(FrameKind.PING, 0, 0, payload)
        wanted = Frame(FrameKind.PING, ACK, 0, payload)
        count = self.frames.count(wanted)
        await self.until(lambda: self.frames.count(wanted) > count)
        assert not self.is_gone

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return
