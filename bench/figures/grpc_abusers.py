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
from escrowmq.broker.grpc.names import duration
from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.http2.frames import FRAME_HEAD, FRAME_HEAD_BYTES, FrameKind, frame
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD

#: Calls in flight over one connection; the broker refuses more than 1,024.
IN_FLIGHT = 512
BLOCK_CALLS = 64
SLOW_READERS = 256
SLOW_PULLS = 64
#: Receipts of one request.
ACKS = 64
#: How long a receive may wait.
WAIT_MS = 20_000
UNREAD_STREAMS = 1_000
#: Settings of one write; each is answered.
SETTINGS_AT_ONCE = 64
RECEIVE_BUFFER_BYTES = 65_536
#: Part of the trailers that end each answer.
END_OF_ANSWER = b"\x0bgrpc-status"
STREAM_ID = Struct(">I")
STREAM_ID_AT = 5
PING = b"vanishes"

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
    flood(address, "SendMessage", request.SerializeToString())


def forged_receipts(address: Address) -> None:
    """Acknowledge messages with receipts that the broker never made."""
    entries = [
        grpc.AckMessageEntry(message_id="m", receipt_handle=f"1.forged.1.{PULLED_QUEUE}.{at}.1.1")
        for at in range(ACKS)
    ]
    request = grpc.AckMessageRequest(
        group=grpc.Resource(name="forgers"),
        topic=grpc.Resource(name=PULLED_TOPIC),
        entries=entries,
    )
    flood(address, "AckMessage", request.SerializeToString())


def filtered_receives(address: Address) -> None:
    """Receive with a tag that no message has."""
    flood(address, "ReceiveMessage", receiving("filters", "none", 0))


def receiving(group: str, tag: str, wait_ms: int) -> bytes:
    """Return a request for the messages of a tag, which may wait."""
    return grpc.ReceiveMessageRequest(
        group=grpc.Resource(name=group),
        message_queue=grpc.MessageQueue(topic=grpc.Resource(name=PULLED_TOPIC), id=-1),
        batch_size=32,
        filter_expression=grpc.FilterExpression(type=1, expression=tag),
        invisible_duration=duration(30_000),
        long_polling_timeout=duration(wait_ms),
    ).SerializeToString()


def flood(address: Address, method: str, request: bytes) -> None:
    """Make calls as fast as the broker answers them, many at a time."""
    calls = Calls(method, request, BLOCK_CALLS)
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
    """Begin long polls and reset the connection once they wait, over and over."""
    request = receiving("vanishing", "none", WAIT_MS)
    calls = Calls("ReceiveMessage", request, BLOCK_CALLS).numbered(1)
    while True:
        with opened(address) as one, contextlib.suppress(OSError):
            # The answer to the ping comes after the calls have begun.
            one.sendall(calls + frame(FrameKind.PING, 0, 0, PING))
            data = more = one.recv(READ_BYTES)
            while more and PING not in data:
                more = one.recv(READ_BYTES)
                data = data[-len(PING) :] + more
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
    "grpc_filtered_receives": filtered_receives,
    "grpc_forged_receipts": forged_receipts,
    "grpc_slow_readers": slow_readers,
    "grpc_unread_streams": unread_streams,
    "grpc_vanishing": vanishing,
}
