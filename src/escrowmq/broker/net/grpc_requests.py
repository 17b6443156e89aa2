"""Requests of one gRPC connection: from the data of a stream to its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.protocol.http2.grpc_messages import (
    GrpcMessageReader,
    GrpcStatus,
    MessageRefused,
    http_answer,
    read_timeout,
)
from escrowmq.protocol.http2.violations import Http2Error

if TYPE_CHECKING:
    from escrowmq.broker.net.grpc_call import GrpcCall
    from escrowmq.broker.net.grpc_door import GrpcDoor
    from escrowmq.broker.net.grpc_streams import GrpcStreams

NOT_GRPC = http_answer(415, "this port speaks gRPC only")
NOT_POST = http_answer(405, "gRPC calls are POST requests")
HEADERS_TOO_LARGE = http_answer(431, "the header fields are too large")[0]


class GrpcRequests:
    """Gives the requests of one connection to their handlers."""

    def __init__(self, streams: GrpcStreams, door: GrpcDoor) -> None:
        self._streams = streams
        self._methods = door.methods
        self._deadlines = door.deadlines
        self._message_bytes_max = door.limits.message_bytes_max
        #: Bytes of incomplete requests.
        self.held_bytes = 0

    def dispatch(self, call: GrpcCall, now: float) -> None:
        """Find the handler of a new call."""
        # A timeout that cannot be decoded ends the connection, as a bad frame does.
        timeout = call.head.get(b"grpc-timeout")
        if timeout is not None:
            timeout_s = read_timeout(timeout)
            if timeout_s is None:
                call.end(GrpcStatus.INTERNAL, "grpc-timeout is malformed")
                return
            call.deadline = now + timeout_s
            self._deadlines.add(call)
        admit = self._methods.admit
        if admit is not None and not admit(call):
            return
        call.on_request = self._methods.unary.get(call.path)
        if call.on_request is None:
            stream = self._methods.streams.get(call.path)
            if stream is None:
                call.end(GrpcStatus.UNIMPLEMENTED, "no such method")
            else:
                call.start(stream)

    def feed(self, call: GrpcCall, payload: bytes) -> None:
        """Take data of a request that is not one message in one frame."""
        if not call.is_open or call.refusal is not None or call.is_refused:
            return
        reader = call.reader
        if reader is None:
            encoding = call.header(b"grpc-encoding") or b"identity"
            reader = call.reader = GrpcMessageReader(encoding, self._message_bytes_max)
        try:
            messages = reader.feed(payload)
        except MessageRefused as refused:
            call.end(refused.status, refused.text)
            return
        kept = call.message
        if call.on_request is not None and messages:
            if kept is not None or len(messages) > 1:
                call.end(GrpcStatus.INTERNAL, "a request has more than one message")
                return
            kept = call.message = messages[0]
        self.count_held(call, reader.held_bytes + len(kept or b""))
        if call.on_request is None:
            for message in messages:
                if call.events is not None:
                    call.guarded(call.events.on_message, message)

    def half_close(self, call: GrpcCall) -> None:
        """Note that the client has sent everything."""
        call.is_half_closed = True
        if call.bytes_left:
            self._streams.reject(call.stream_id, Http2Error.PROTOCOL_ERROR)
        elif call.refusal is not None:
            call.answer_http(*call.refusal)
        elif call.is_refused:
            return
        elif call.reader is not None and call.reader.held_bytes:
            call.end(GrpcStatus.INTERNAL, "the last message is incomplete")
        elif call.on_request is None:
            if call.events is not None:
                call.guarded(call.events.on_half_close)
        elif call.message is None:
            call.end(GrpcStatus.INTERNAL, "a request has no message")
        else:
            message, call.message = call.message, None
            self.count_held(call, 0)
            call.request(call.on_request, message)

    def count_held(self, call: GrpcCall, size: int) -> None:
        """Set what a call holds of its incomplete request."""
        self.held_bytes += size - call.counted_bytes
        call.counted_bytes = size
