"""Harmful gRPC clients: floods, clients that do not read, and clients that vanish.

Each prepares its frames in advance, so that the work falls on the broker.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections.abc import Callable
from struct import Struct

from bench.figures.grpc_requests import PULLED_QUEUE, PULLED_TOPIC, message, publishing
from bench.figures.grpc_wire import OPENING, READ_BYTES, call_frames
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.http2.frames import FRAME_HEAD, FRAME_HEAD_BYTES, FrameKind, frame
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD

#: Calls in flight over one connection; the broker refuses more than 1,024.
IN_FLIGHT = 512
BLOCK_CALLS = 64
SLOW_READERS = 256
SLOW_PULLS = 64
UNREAD_STREAMS = 1_000
#: Settings of one write; each is answered.
SETTINGS_AT_ONCE = 64
RECEIVE_BUFFER_BYTES = 65_536
#: Part of the trailers that end each answer.
END_OF_ANSWER = b"\x0bgrpc-status"
STREAM_ID = Struct(">I")
STREAM_ID_AT = 5

Address = tuple[str, int]


class Calls:
    """The frames of many equal calls, whose streams are numbered anew for each connection."""

    def __init__(self, method: str, request: bytes, count: int) -> None:
        self._block = bytearray()
        self._places: list[int] = []
        for _ in range(count):
            frames = call_frames(3, method, "bench-abuser", request, flags=1)
            at = 0
            while at < len(frames):
                self._places.append(len(self._block) + at + STREAM_ID_AT)
                at += FRAME_HEAD_BYTES + (FRAME_HEAD.unpack_from(frames, at)[0] >> 8)
            self._block += frames
        self._frames_each = len(self._places) // count

    def numbered(self, first: int) -> bytes:
        """Return the frames of calls on the streams from this one on."""
        for number, place in enumerate(self._places):
            STREAM_ID.pack_into(self._block, place, first + 2 * (number // self._frames_each))
        return bytes(self._block)


def sends(address: Address) -> None:
    """Send messages as fast as the broker takes them, many at a time."""
    request = grpc.SendMessageRequest(messages=[message(1, topic="flood")])
    calls = Calls("SendMessage", request.SerializeToString(), BLOCK_CALLS)
    one = opened(address)
    one.setblocking(False)  # noqa: FBT003 - the call has no keyword
    selector = selectors.DefaultSelector()
    selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)
    stream_id, sent, answered, rest = 1, 0, 0, memoryview(b"")
    while True:
        if not rest and sent - answered <= IN_FLIGHT - BLOCK_CALLS:
            rest = memoryview(calls.numbered(stream_id))
            stream_id += 2 * BLOCK_CALLS
            sent += BLOCK_CALLS
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if rest else 0)
        selector.modify(one, wanted)
        ((_, ready),) = selector.select()
        if ready & selectors.EVENT_READ:
            data = one.recv(READ_BYTES)
            if not data:
                return
            answered += data.count(END_OF_ANSWER)
        if ready & selectors.EVENT_WRITE:
            rest = rest[one.send(rest) :]


def slow_readers(address: Address) -> None:
    """Pull large messages and never read the answers."""
    request = grpc.PullMessageRequest(
        group=grpc.Resource(name="slow"),
        message_queue=grpc.MessageQueue(topic=grpc.Resource(name=PULLED_TOPIC), id=PULLED_QUEUE),
        batch_size=32,
        filter_expression=grpc.FilterExpression(type=1, expression="*"),
    )
    pulls = Calls("PullMessage", request.SerializeToString(), SLOW_PULLS).numbered(1)
    unread(address, pulls, SLOW_READERS)


def unread_streams(address: Address) -> None:
    """Open telemetry streams, send settings over and over, and never read the answers."""
    settings = publishing("flood").SerializeToString()
    opening = b"".join(
        call_frames(2 * number + 1, "Telemetry", f"bench-{number}", settings, flags=0)
        for number in range(UNREAD_STREAMS)
    )
    data = MESSAGE_HEAD.pack(0, len(settings)) + settings
    again = frame(FrameKind.DATA, 0, 1, data) * SETTINGS_AT_ONCE
    while True:
        one = opened(address, RECEIVE_BUFFER_BYTES)
        # The broker cuts the connection when too much is unread.
        with contextlib.suppress(OSError):
            one.sendall(opening)
            while True:
                one.sendall(again)


def unread(address: Address, data: bytes, count: int) -> None:
    """Send the same bytes over many connections that read nothing."""
    ones: list[socket.socket] = []
    while True:
        # Connections that the broker cut are opened again after a second.
        ones = [one for one in ones if not is_cut(one)]
        while len(ones) < count:
            one = opened(address, RECEIVE_BUFFER_BYTES)
            one.sendall(data)
            ones.append(one)
        time.sleep(1)


def vanishing(address: Address) -> None:
    """Begin long polls and reset the connection at once, over and over."""
    request = grpc.SendMessageRequest(messages=[message(1, topic="flood")])
    calls = Calls("SendMessage", request.SerializeToString(), BLOCK_CALLS).numbered(1)
    while True:
        with opened(address) as one, contextlib.suppress(OSError):
            one.sendall(calls)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def opened(address: Address, receive_buffer_bytes: int = 0) -> socket.socket:
    """Connect, and open the largest windows."""
    one = socket.socket()
    if receive_buffer_bytes:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    one.connect(address)
    one.sendall(OPENING)
    return one


def is_cut(one: socket.socket) -> bool:
    """Whether the other side has reset the connection."""
    return one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


GRPC_KINDS: dict[str, Callable[[Address], None]] = {
    "grpc_sends": sends,
    "grpc_slow_readers": slow_readers,
    "grpc_unread_streams": unread_streams,
    "grpc_vanishing": vanishing,
}
