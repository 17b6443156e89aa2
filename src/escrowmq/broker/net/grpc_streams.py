"""Streams of one gRPC connection: what each frame of the client means for them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from escrowmq.broker.net.grpc_call import GrpcCall
from escrowmq.broker.net.grpc_limits import CONTINUATIONS_MAX, FloodGuard, flood
from escrowmq.broker.net.grpc_output import GrpcOutput
from escrowmq.broker.net.grpc_requests import (
    HEADERS_TOO_LARGE,
    NOT_GRPC,
    NOT_POST,
    GrpcRequests,
)
from escrowmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_DEFAULT,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    PADDED,
    PING_BYTES,
    PRIORITY_FLAG,
    SETTINGS_ACK,
    STREAM_ID_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    FrameKind,
    Http2Setting,
    dependency,
    frame,
    read_settings,
    read_word,
    rst_stream,
    window_update,
    without_padding,
    without_priority,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD_BYTES
from escrowmq.protocol.http2.header_blocks import TABLE_BYTES_DEFAULT, HeaderListTooLarge
from escrowmq.protocol.http2.request_heads import HeadReader
from escrowmq.protocol.http2.violations import Http2Error, Http2Violation, violation

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_connection import GrpcConnection
    from escrowmq.broker.net.grpc_door import GrpcDoor

#: Ids of ended streams that are remembered, to judge late frames.
ENDED_MAX = 64
_PRIORITY_BYTES = 5


def _protocol_error(message: str, **fields: object) -> Http2Violation:
    return violation(Http2Error.PROTOCOL_ERROR, message, **fields)


class GrpcStreams:
    """Reads the frames of one connection and keeps its streams."""

    def __init__(self, connection: GrpcConnection, door: GrpcDoor, now: float) -> None:
        self.connection = connection
        self.output = GrpcOutput(connection.count_unsent)
        self._door = door
        self._methods = door.methods
        self._limits = door.limits
        self._heads = HeadReader(door.limits.header_list_bytes_max)
        self._guard = FloodGuard(now)
        self._now = now
        #: The largest request in one frame.
        self._whole_bytes_max = door.limits.message_bytes_max + MESSAGE_HEAD_BYTES
        #: Open streams.
        self.calls: dict[int, GrpcCall] = {}
        self._requests = GrpcRequests(self, door)
        self.last_stream_id = 0
        self.refuses_calls = False
        #: Whether complete frames may be left after a turn.
        self.has_more = False
        #: Bytes that the client may send on a stream and on all, and has sent since the last grant.
        self.stream_window = max(WINDOW_DEFAULT, door.limits.message_bytes_max + 65_536)
        self.window = max(16 * 1024 * 1024, 4 * self.stream_window)
        self._received_bytes = 0
        #: The stream of an incomplete header block, its flags and its parts.
        self._block_stream = 0
        self._block_flags = 0
        self._block: list[bytes] = []
        #: Streams that ended before the client's side did, and streams that ended after it.
        self._ended_early: deque[int] = deque(maxlen=ENDED_MAX)
        self._ended: deque[int] = deque(maxlen=ENDED_MAX)

    def read_frames(self, data: bytes, at: int, now: float, until: float) -> int:
        """Handle complete frames until a deadline; return where the rest begins."""
        self._now = now
        self.has_more = False
        end = len(data)
        time = self._door.time
        while end - at >= FRAME_HEAD_BYTES:
            word, flags, stream_id = FRAME_HEAD.unpack_from(data, at)
            size, kind = word >> 8, word & 0xFF
            if size > FRAME_BYTES_DEFAULT:
                raise violation(Http2Error.FRAME_SIZE_ERROR, "a frame is too large", size=size)
            start = at + FRAME_HEAD_BYTES
            if start + size > end:
                break
            at = start + size
            if self._block_stream and kind != FrameKind.CONTINUATION:
                raise _protocol_error("a header block is interrupted")
            payload = data[start:at]
            if kind < len(_ON_FRAME):
                _ON_FRAME[kind](self, flags, stream_id & STREAM_ID_MAX, payload)
            else:
                self._guard.control(now)
            if self.connection.is_closing:
                return end
            if time() > until:
                self.has_more = at < end
                break
        return at

    # Requests.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise _protocol_error("HEADERS on a stream that no client can open", stream=stream_id)
        if flags & PADDED:
            payload = without_padding(payload)
        if flags & PRIORITY_FLAG:
            parent, payload = without_priority(payload)
            if parent == stream_id:
                raise _protocol_error("a stream depends on itself", stream=stream_id)
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, payload)
        else:
            self._block_stream, self._block_flags = stream_id, flags
            self._block = [payload]

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream or stream_id != self._block_stream:
            raise _protocol_error("CONTINUATION without its HEADERS", stream=stream_id)
        self._block.append(payload)
        size = sum(map(len, self._block))
        if len(self._block) > CONTINUATIONS_MAX or size > 2 * self._limits.header_list_bytes_max:
            raise flood("a header block does not end")
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._block_stream = 0
            self._on_block(self._block_flags, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Handle a complete header block."""
        if stream_id > self.last_stream_id:
            self._open(flags, stream_id, block)
            return
        problem = self._heads.read_trailers(block)
        call = self.calls.get(stream_id)
        if call is None:
            if stream_id not in self._ended_early:
                has_been = stream_id in self._ended
                error = Http2Error.STREAM_CLOSED if has_been else Http2Error.PROTOCOL_ERROR
                raise violation(error, "HEADERS on an ended stream", stream=stream_id)
        elif call.is_half_closed:
            raise violation(Http2Error.STREAM_CLOSED, "HEADERS after the last message")
        elif problem or not flags & END_STREAM:
            self.reject(stream_id, Http2Error.PROTOCOL_ERROR)
        else:
            self._requests.half_close(call)

    def _open(self, flags: int, stream_id: int, block: bytes) -> None:
        self.last_stream_id = stream_id
        try:
            head = self._heads.read_request(block)
        except HeaderListTooLarge:
            self.output.put_headers(stream_id, HEADERS_TOO_LARGE, END_STREAM)
            self.reject(stream_id, Http2Error.NO_ERROR)
            return
        if self.refuses_calls or len(self.calls) >= self._limits.streams_max:
            self.reject(stream_id, Http2Error.REFUSED_STREAM)
            return
        if head.problem:
            self.reject(stream_id, Http2Error.PROTOCOL_ERROR)
            return
        call = GrpcCall(self, stream_id, head, self.output.initial_window)
        self.calls[stream_id] = call
        self._guard.called()
        is_ended = flags & END_STREAM
        if not head.is_grpc:
            call.refusal = NOT_GRPC
        elif not head.is_post:
            call.refusal = NOT_POST
        else:
            call.is_half_closed = bool(is_ended)
            self._requests.dispatch(call, self._now)
        if is_ended and not call.has_ended:
            self._requests.half_close(call)

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._received_bytes += size
        if self._received_bytes * 2 > self.window:
            # Grants at half of a window come before a client can exceed it. Budgets bound what
            # clients send, not windows: calls that wait for each other's windows never end.
            self.output.put(window_update(0, self._received_bytes))
            self._received_bytes = 0
        if flags & PADDED:
            payload = without_padding(payload)
        call = self.calls.get(stream_id)
        if call is None or call.is_half_closed:
            self._on_late_data(stream_id, call)
            return
        call.received_bytes += size
        if call.bytes_left is not None:
            call.bytes_left -= len(payload)
            if call.bytes_left < 0 or (flags & END_STREAM and call.bytes_left):
                self.reject(stream_id, Http2Error.PROTOCOL_ERROR)
                return
        if flags & END_STREAM:
            call.is_half_closed = True
            self._take_last(call, payload)
            return
        if call.received_bytes * 2 > self.stream_window:
            self.output.put(window_update(stream_id, call.received_bytes))
            call.received_bytes = 0
        if payload:
            self._requests.feed(call, payload)
        else:
            self._guard.control(self._now)

    def _take_last(self, call: GrpcCall, payload: bytes) -> None:
        """Take the last data of a request."""
        handle = call.on_request
        if (
            handle is not None
            and call.reader is None
            and payload[:1] == b"\0"
            and int.from_bytes(payload[1:MESSAGE_HEAD_BYTES]) == len(payload) - MESSAGE_HEAD_BYTES
            and len(payload) <= self._whole_bytes_max
        ):
            # Most requests are one message in one frame.
            call.request(handle, payload[MESSAGE_HEAD_BYTES:])
            return
        self._requests.feed(call, payload)
        if not call.has_ended:
            self._requests.half_close(call)

    def _on_late_data(self, stream_id: int, call: GrpcCall | None) -> None:
        """Judge data for a stream whose client side is over."""
        if self._is_idle(stream_id):
            raise _protocol_error("DATA on an idle stream", stream=stream_id)
        self._guard.control(self._now)
        if call is not None or stream_id not in self._ended_early:
            self.reject(stream_id, Http2Error.STREAM_CLOSED)

    # Endings.

    def reject(self, stream_id: int, error: Http2Error) -> None:
        """Reset a stream because of what the client sent."""
        self._guard.reset(self._now)
        self.output.put(rst_stream(stream_id, error))
        call = self.calls.get(stream_id)
        if call is None:
            self._ended_early.append(stream_id)
        else:
            self.forget(call)
            call.close()

    def reset(self, call: GrpcCall, error: Http2Error) -> None:
        """Reset a stream because of what happens here."""
        self.output.put(rst_stream(call.stream_id, error))
        self.forget(call)
        call.close()

    def forget(self, call: GrpcCall) -> None:
        """Remove a stream that is over."""
        if self.calls.pop(call.stream_id, None) is None:
            return
        if call.counted_bytes:
            self._requests.count_held(call, 0)
        if call.tick:
            self._door.deadlines.drop(call)
        (self._ended if call.is_half_closed else self._ended_early).append(call.stream_id)
        if self.refuses_calls:
            self.connection.close_if_done()

    def close_calls(self) -> None:
        """End all calls, because the connection is over."""
        for call in list(self.calls.values()):
            self.forget(call)
            call.close()

    def _on_rst_stream(self, _flags: int, stream_id: int, payload: bytes) -> None:
        read_word(payload, FrameKind.RST_STREAM)
        if self._is_idle(stream_id):
            raise _protocol_error("RST_STREAM on an idle stream", stream=stream_id)
        self._guard.reset(self._now)
        call = self.calls.get(stream_id)
        if call is not None:
            # The client has ended the stream, so a later frame is an error and not merely late.
            call.is_half_closed = True
            self.forget(call)
            call.close()

    @property
    def held_message_bytes(self) -> int:
        """Bytes of incomplete requests."""
        return self._requests.held_bytes

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self.last_stream_id or not stream_id & 1

    # Everything else.

    def _on_priority(self, _flags: int, stream_id: int, payload: bytes) -> None:
        self._guard.control(self._now)
        if len(payload) != _PRIORITY_BYTES:
            raise violation(Http2Error.FRAME_SIZE_ERROR, "PRIORITY must have 5 bytes")
        if stream_id in (0, dependency(payload)):
            raise _protocol_error("PRIORITY of the connection, or of a stream on itself")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._guard.control(self._now)
        if stream_id:
            raise _protocol_error("SETTINGS on a stream", stream=stream_id)
        if flags & ACK:
            if payload:
                raise violation(Http2Error.FRAME_SIZE_ERROR, "an ACK of SETTINGS must be empty")
            self._heads.decoder.table_bytes_limit = self._limits.header_table_bytes
            return
        values = read_settings(payload)
        output = self.output
        output.frame_bytes_max = values.get(Http2Setting.MAX_FRAME_SIZE, output.frame_bytes_max)
        if values.get(Http2Setting.HEADER_TABLE_SIZE, TABLE_BYTES_DEFAULT) < TABLE_BYTES_DEFAULT:
            output.drop_table()
        output.put(SETTINGS_ACK)
        window = values.get(Http2Setting.INITIAL_WINDOW_SIZE, output.initial_window)
        change, output.initial_window = window - output.initial_window, window
        if change:
            for call in list(self.calls.values()):
                self._widen(call, change)

    def _widen(self, call: GrpcCall, increment: int) -> None:
        call.window += increment
        if call.window > WINDOW_MAX:
            self.reject(call.stream_id, Http2Error.FLOW_CONTROL_ERROR)
        elif call.held_bytes:
            self.output.resume(call)

    def _on_push_promise(self, _flags: int, _stream_id: int, _payload: bytes) -> None:
        raise _protocol_error("clients must not push")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise _protocol_error("PING on a stream", stream=stream_id)
        if len(payload) != PING_BYTES:
            raise violation(Http2Error.FRAME_SIZE_ERROR, "PING must have 8 bytes")
        self._guard.control(self._now)
        if flags & ACK:
            self.connection.ping_answered(payload)
        else:
            self.output.put(frame(FrameKind.PING, ACK, 0, payload))

    def _on_goaway(self, _flags: int, stream_id: int, _payload: bytes) -> None:
        # The client opens no more streams and closes the connection itself.
        self._guard.control(self._now)
        if stream_id:
            raise _protocol_error("GOAWAY on a stream", stream=stream_id)

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes) -> None:
        increment = read_word(payload, FrameKind.WINDOW_UPDATE) & WINDOW_MAX
        if stream_id == 0:
            self.output.widen(increment)
            return
        if self._is_idle(stream_id):
            raise _protocol_error("WINDOW_UPDATE on an idle stream", stream=stream_id)
        call = self.calls.get(stream_id)
        if call is None:
            self._guard.control(self._now)
        elif increment == 0:
            self.reject(stream_id, Http2Error.PROTOCOL_ERROR)
        else:
            self._widen(call, increment)


#: The handler of each kind of frame; its place is the number of the kind in HTTP/2.
_ON_FRAME = (
    GrpcStreams._on_data,  # noqa: SLF001 - the class's own methods
    GrpcStreams._on_headers,  # noqa: SLF001
    GrpcStreams._on_priority,  # noqa: SLF001
    GrpcStreams._on_rst_stream,  # noqa: SLF001
    GrpcStreams._on_settings,  # noqa: SLF001
    GrpcStreams._on_push_promise,  # noqa: SLF001
    GrpcStreams._on_ping,  # noqa: SLF001
    GrpcStreams._on_goaway,  # noqa: SLF001
    GrpcStreams._on_window_update,  # noqa: SLF001
    GrpcStreams._on_continuation,  # noqa: SLF001
)
