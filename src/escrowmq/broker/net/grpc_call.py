"""One gRPC call, and the functions that handle calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from escrowmq.model.event_log import event_log
from escrowmq.protocol.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD_BYTES,
    FrameKind,
    frame,
    rst_stream,
)
from escrowmq.protocol.http2.grpc_messages import (
    ANSWER_HEAD,
    MESSAGE_HEAD,
    MESSAGE_HEAD_BYTES,
    TRAILERS_OK,
    GrpcMessageReader,
    GrpcStatus,
    trailers,
)
from escrowmq.protocol.http2.request_heads import RequestHead
from escrowmq.protocol.http2.violations import Http2Error

if TYPE_CHECKING:
    from escrowmq.broker.access.gate import AccessGate
    from escrowmq.broker.net.grpc_streams import GrpcStreams
    from escrowmq.broker.net.limits import Late

log = event_log(__name__)

#: An answer in one piece: head of HEADERS, header block, head of DATA, head of the message.
_ANSWER = Struct(f">5sI{len(ANSWER_HEAD)}sIBIBI")
_HEAD_START = frame(FrameKind.HEADERS, END_HEADERS, 0, ANSWER_HEAD)[: FRAME_HEAD_BYTES - 4]
_TRAILERS = Struct(f">5sI{len(TRAILERS_OK)}s")
_TRAILERS_START = frame(FrameKind.HEADERS, END_HEADERS | END_STREAM, 0, TRAILERS_OK)[
    : FRAME_HEAD_BYTES - 4
]


class StreamEvents(Protocol):
    """A handler's side of a call."""

    def on_message(self, message: bytes) -> None:
        """Handle a message of the client."""
        ...

    def on_half_close(self) -> None:
        """Handle the end of the client's messages."""
        ...

    def on_closed(self) -> None:
        """Note that the call is over, for whatever reason; called exactly once."""
        ...


class GrpcCall:
    """One call: a stream of one connection."""

    __slots__ = (
        "_closing",
        "_has_head",
        "_held",
        "_output",
        "_streams",
        "bytes_left",
        "connection",
        "counted_bytes",
        "deadline",
        "events",
        "has_ended",
        "head",
        "held_bytes",
        "is_half_closed",
        "is_open",
        "is_refused",
        "local_host",
        "message",
        "on_request",
        "path",
        "peer_host",
        "peer_port",
        "reader",
        "received_bytes",
        "refusal",
        "stream_id",
        "tick",
        "window",
    )

    def __init__(
        self, streams: GrpcStreams, stream_id: int, head: RequestHead, window: int
    ) -> None:
        self._streams = streams
        self._output = streams.output
        self.connection = connection = streams.connection
        #: The client's address, and the address that it connected to.
        self.peer_host, self.peer_port = connection.peer_host, connection.peer_port
        self.local_host = connection.local_host
        self.stream_id = stream_id
        self.head = head
        self.path = head.get(b":path") or b""
        #: When the client's timeout ends, on the event loop's clock; None if it set none.
        self.deadline: float | None = None
        #: Whether messages can still be sent.
        self.is_open = True
        #: Whether the stream is over for both sides.
        self.has_ended = False
        #: Whether the client has sent its last message.
        self.is_half_closed = False
        #: Bytes that the client's flow control still lets the broker send on this stream.
        self.window = window
        #: Received bytes that are not granted to the client again.
        self.received_bytes = 0
        #: Bytes of the request that are missing to its content-length; None if it has none.
        self.bytes_left = head.content_length
        #: None until the first data that is not exactly one message.
        self.reader: GrpcMessageReader | None = None
        #: The request, if it is complete and the client has not said that it is the last message.
        self.message: bytes | None = None
        self.counted_bytes = 0
        #: Answer for a client that does not speak gRPC.
        self.refusal: tuple[bytes, bytes] | None = None
        #: Whether the gate refused it; the answer may come later.
        self.is_refused = False
        #: The tick at which ``Deadlines`` expires the call; 0 if it does not watch the call.
        self.tick = 0
        self.on_request: Unary | None = None
        self.events: StreamEvents | None = None
        self._has_head = False
        #: Data that waits for a window, its bytes, and the block that ends the stream.
        self._held: deque[bytes | memoryview] | None = None
        self.held_bytes = 0
        self._closing: bytes | None = None

    @property
    def unsent_bytes(self) -> int:
        """Bytes of this call that flow control holds back, and of its connection at the socket."""
        return self.held_bytes + self.connection.socket_bytes

    @property
    def has_room(self) -> bool:
        """Whether the client keeps up with reading."""
        return self.connection.has_room

    @property
    def is_any_behind(self) -> bool:
        """Whether any connection waits for a turn."""
        return self.connection.turns.is_any_behind

    def ask_for_turn(self, late: Late) -> None:
        """Let an answer go on when it is its turn and the client has read enough."""
        self.connection.ask_for_turn(late)

    def header(self, name: bytes) -> bytes | None:
        """Return a header field of the request; names are lower case."""
        return self.connection.field_of(self.head, name)

    # Sending.

    def answer(self, message: bytes) -> None:
        """Answer with one message and end the call."""
        output = self._output
        size = len(message) + MESSAGE_HEAD_BYTES
        if (
            size > self.window
            or size > output.window
            or size > output.frame_bytes_max
            or self._has_head
            or not self.is_open
            or output.must_drop_table
        ):
            if self.send(message):
                self.end()
            return
        output.window -= size
        stream_id = self.stream_id
        output.put(
            _ANSWER.pack(
                _HEAD_START, stream_id, ANSWER_HEAD, size << 8, 0, stream_id, 0, len(message)
            )
            + message
            + _TRAILERS.pack(_TRAILERS_START, stream_id, TRAILERS_OK)
        )
        self.is_open = False
        self._finish()

    def send(self, message: bytes) -> bool:
        """Send one message; return False if the call is over."""
        if not self.is_open:
            return False
        if not self._has_head:
            self._has_head = True
            self._output.put_headers(self.stream_id, ANSWER_HEAD)
        self._hold(MESSAGE_HEAD.pack(0, len(message)) + message)
        return True

    def end(self, status: int = 0, text: str = "") -> None:
        """End the call; messages that were sent before still go out."""
        if not self.is_open:
            return
        self.is_open = False
        self._close(trailers(status, text, is_only=not self._has_head))

    def answer_http(self, block: bytes, body: bytes) -> None:
        """Answer a client that does not speak gRPC."""
        self.is_open = False
        self._output.put_headers(self.stream_id, block)
        self._hold(body)
        self._close(b"")

    def _hold(self, data: bytes) -> None:
        """Send data as far as the windows allow, and hold the rest."""
        if self._held is None:
            self._held = deque()
        self._held.append(data)
        self.held_bytes += len(data)
        self._output.wait(self, len(data))

    def _close(self, closing: bytes) -> None:
        self._closing = closing
        if not self.held_bytes:
            self.drained()

    def take_held(self, room: int) -> bytes | memoryview:
        """Return held data, at most this many bytes."""
        assert self._held is not None
        data = self._held.popleft()
        if len(data) > room:
            view = memoryview(data)
            self._held.appendleft(view[room:])
            data = view[:room]
        self.held_bytes -= len(data)
        return data

    def drained(self) -> None:
        """End the stream if all data is sent and the handler is done."""
        if self._closing is None or self.has_ended:
            return
        output = self._output
        if self._closing:
            output.put_headers(self.stream_id, self._closing, flags=END_STREAM)
        else:
            output.put(frame(FrameKind.DATA, END_STREAM, self.stream_id))
        self._finish()

    def _finish(self) -> None:
        """Forget the call, because its answer is complete."""
        if not self.is_half_closed:
            # The client need not send the rest of its request.
            self._output.put(rst_stream(self.stream_id, Http2Error.NO_ERROR))
        self._streams.forget(self)
        self.close()

    # Endings.

    def close(self) -> None:
        """Note that the stream is over, and tell the handler."""
        self.is_open = False
        if self.has_ended:
            return
        self.has_ended = True
        if self.held_bytes:
            self._output.drop(self, self.held_bytes)
            self.held_bytes = 0
            self._held = None
        events, self.events = self.events, None
        if events is not None:
            self.guarded(events.on_closed)

    def expire(self) -> None:
        """End the call because its deadline has passed."""
        if self.is_open and not self.held_bytes:
            self.end(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")
        elif not self.has_ended:
            self._streams.reset(self, Http2Error.CANCEL)

    # Receiving.

    def start(self, stream: Stream) -> None:
        """Let a handler of streams handle the call."""
        try:
            self._follow(stream(self))
        except Exception as error:  # noqa: BLE001 - one bad call must not end the others
            self._fail(error)

    def request(self, handle: Unary, message: bytes) -> None:
        """Let a handler handle the complete request."""
        try:
            self._follow(handle(self, message))
        except Exception as error:  # noqa: BLE001 - one bad call must not end the others
            self._fail(error)

    def _follow(self, events: StreamEvents | None) -> None:
        if events is None:
            return
        if self.has_ended:
            self.guarded(events.on_closed)
        else:
            self.events = events

    def guarded(self, step: Callable[..., None], *arguments: object) -> None:
        """Call a handler; if it raises, end the call."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001 - one bad call must not end the others
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        path = self.path.decode("latin-1")
        log.error("grpc_call_failed", extra={"path": path}, exc_info=error)
        self.end(GrpcStatus.INTERNAL, "the broker failed; its log says why")


Unary = Callable[[GrpcCall, bytes], StreamEvents | None]
"""Handles a call whose request is complete; may answer at once, later, or with many messages."""
Stream = Callable[[GrpcCall], StreamEvents]
"""Handles a call whose client sends many messages."""


@dataclass(frozen=True, slots=True)
class GrpcMethods:
    """Handlers by path."""

    unary: Mapping[bytes, Unary]
    streams: Mapping[bytes, Stream]
    #: Finds the user of a call, or refuses the call and returns False; None without access control.
    admit: Callable[[GrpcCall], bool] | None = None
    #: Knows the connections of users; None without access control.
    gate: AccessGate | None = None
