"""A gRPC client that costs little: prepared frames, one blocking socket, no library.

It never lets the broker's flow control end: the windows that it opens are the largest there are.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from escrowmq.protocol.grpc.definitions import path_of
from escrowmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    PREFACE,
    SETTINGS_ACK,
    STREAM_ID_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    FrameKind,
    Http2Setting,
    frame,
    settings_frame,
    window_update,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD, MESSAGE_HEAD_BYTES
from escrowmq.protocol.http2.header_blocks import TABLE_OFF, encode_fields

if TYPE_CHECKING:
    from escrowmq.protocol.grpc.messages import GrpcMessage

READ_BYTES = 1 << 18
OPENING = (
    PREFACE
    + settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX})
    + window_update(0, WINDOW_MAX - WINDOW_DEFAULT)
)
TIMEOUT_S = 30.0


def call_frames(stream_id: int, method: str, client_id: str, message: bytes, flags: int) -> bytes:
    """Return the frames of a call; ``flags`` are those of its last data."""
    block = encode_fields(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path_of(method)),
            (b":authority", b"broker"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"x-mq-client-id", client_id.encode()),
            (b"x-mq-language", b"PYTHON"),
        )
    )
    data = MESSAGE_HEAD.pack(0, len(message)) + message
    # The first block of a connection gives up the dynamic table, which lets the broker read fast.
    start = TABLE_OFF if stream_id == 1 else b""
    frames = [frame(FrameKind.HEADERS, END_HEADERS, stream_id, start + block)]
    for at in range(0, len(data), FRAME_BYTES_DEFAULT):
        is_last = at + FRAME_BYTES_DEFAULT >= len(data)
        part = data[at : at + FRAME_BYTES_DEFAULT]
        frames.append(frame(FrameKind.DATA, flags if is_last else 0, stream_id, part))
    return b"".join(frames)


class WireClient:
    """One connection of one client."""

    def __init__(self, address: str, client_id: str, receive_buffer_bytes: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._next_stream = 1
        self._rest = b""
        #: Data of streams that is not a whole message yet.
        self._parts: dict[int, bytes] = {}
        self.socket.sendall(OPENING)

    def begin(self, method: str, request: GrpcMessage, *, is_stream: bool = False) -> int:
        """Send a request; return its stream."""
        data = self.encoded(method, request.SerializeToString(), is_stream=is_stream)
        self.socket.sendall(data)
        return self._next_stream - 2

    def encoded(self, method: str, message: bytes, *, is_stream: bool = False) -> bytes:
        """Return the frames of the next call."""
        stream_id, self._next_stream = self._next_stream, self._next_stream + 2
        flags = 0 if is_stream else END_STREAM
        return call_frames(stream_id, method, self.client_id, message, flags)

    def ask(self, method: str, request: GrpcMessage) -> list[bytes]:
        """Send a request; return the messages of its answer."""
        self.begin(method, request)
        return self.answers(1)

    def answers(self, count: int) -> list[bytes]:
        """Return the messages that arrive until this many calls have ended."""
        messages = []
        while count:
            for _, message in self.read():
                if message is None:
                    count -= 1
                else:
                    messages.append(message)
        return messages

    def read(self) -> Iterator[tuple[int, bytes | None]]:
        """Read once; yield streams with messages that are complete, None for a stream's end."""
        received = self.socket.recv(READ_BYTES)
        if not received:
            raise ConnectionError("the broker closed the connection")
        data, at = self._rest + received, 0
        while len(data) - at >= FRAME_HEAD_BYTES:
            word, flags, stream_id = FRAME_HEAD.unpack_from(data, at)
            end = at + FRAME_HEAD_BYTES + (word >> 8)
            if end > len(data):
                break
            payload = data[at + FRAME_HEAD_BYTES : end]
            at = end
            yield from self._frame(word & 0xFF, flags, stream_id & STREAM_ID_MAX, payload)
        self._rest = data[at:]

    def _frame(
        self, kind: int, flags: int, stream_id: int, payload: bytes
    ) -> Iterator[tuple[int, bytes | None]]:
        if kind == FrameKind.SETTINGS and not flags & ACK:
            self.socket.sendall(SETTINGS_ACK)
        elif kind == FrameKind.PING and not flags & ACK:
            self.socket.sendall(frame(FrameKind.PING, ACK, 0, payload))
        elif kind == FrameKind.DATA:
            data = self._parts.pop(stream_id, b"") + payload
            while len(data) >= MESSAGE_HEAD_BYTES:
                _, size = MESSAGE_HEAD.unpack_from(data)
                if len(data) < MESSAGE_HEAD_BYTES + size:
                    break
                yield stream_id, data[MESSAGE_HEAD_BYTES : MESSAGE_HEAD_BYTES + size]
                data = data[MESSAGE_HEAD_BYTES + size :]
            if data:
                self._parts[stream_id] = data
        if flags & END_STREAM and kind in (FrameKind.DATA, FrameKind.HEADERS):
            yield stream_id, None

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
