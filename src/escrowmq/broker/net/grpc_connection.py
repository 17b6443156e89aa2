"""One connection of gRPC clients: frames in, calls to handlers, answers in one write per read.

No connection holds the event loop for long: frames that do not fit into one turn wait for later
turns, and until then nothing more is read. If a peer does not read, the broker stops reading from
it, and cuts it if answers pile up. A peer that breaks the rules of HTTP/2 is told so with GOAWAY,
and its connection is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from escrowmq.broker.net.grpc_streams import GrpcStreams
from escrowmq.broker.net.limits import TURN_S, UnknownLimits
from escrowmq.broker.net.tls import certificate_names, has_tls
from escrowmq.protocol.http2.frames import (
    PREFACE,
    STREAM_ID_MAX,
    WINDOW_DEFAULT,
    FrameKind,
    Http2Setting,
    frame,
    goaway,
    settings_frame,
    window_update,
)
from escrowmq.protocol.http2.request_heads import RequestHead
from escrowmq.protocol.http2.violations import Http2Error, Http2Violation, violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.access.known_users import KnownUser
    from escrowmq.broker.grpc.admitting import SeenHeader
    from escrowmq.broker.net.grpc_door import GrpcDoor
    from escrowmq.broker.net.limits import Late

#: Payloads of our PINGs.
_PING_ALIVE = b"escrowmq"
_PING_DRAIN = b"draining"
#: Time for the client to learn that the connection drains, before new calls are refused.
DRAIN_NOTICE_S = 1.0


class GrpcConnection(asyncio.Protocol):
    """Connection of a gRPC client; its peer may also send garbage."""

    def __init__(self, door: GrpcDoor) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._streams = GrpcStreams(self, door, now)
        self._output = self._streams.output
        #: None before the connection is made, and once it is closed or cut.
        self._transport: asyncio.Transport | None = None
        self.peer_host = self.local_host = ""
        self.peer_port = 0
        self._has_preface = self._is_draining = self._has_pinged = self.is_closing = False
        #: Received bytes, and the position in them of the first one that is not handled.
        self._rest, self._at = b"", 0
        #: Whether reading is paused, and whether the connection waits for its next turn.
        self._is_paused = self._has_asked = False
        #: Whether a frame or message is incomplete, and when it last grew.
        self._has_waiting, self._fed_at = False, now
        #: Whether the peer has unread bytes, and more than it may have.
        self._is_unread = self._is_slow = False
        #: Bytes that the peer has not taken, and when it last took some.
        self._unsent_bytes, self._taken_at = 0, now
        self._opened_at = self.heard_at = now
        self.turns = door.shared.turns
        self.time = self._loop.time
        #: The user that the connection belongs to, and the last header that was checked on it.
        self.caller: KnownUser | None = None
        self.seen_header: SeenHeader | None = None
        #: Answers that go on when the peer has read enough.
        self._resting: list[Late] = []

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send our settings, or cut the connection if there are too many."""
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = self._output.transport = cast("asyncio.Transport", transport)
        self.peer_host, self.peer_port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        # With this limit asyncio reports both the first unread byte and the last one that is read.
        self._transport.set_write_buffer_limits(high=0)
        if not self._door.opened(self):
            self.cut("too_many_connections")
            return
        if self._door.methods.gate is not None:
            self._door.methods.gate.opened(self)
        limits = self._door.limits
        ours = {
            Http2Setting.HEADER_TABLE_SIZE: limits.header_table_bytes,
            Http2Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
            Http2Setting.INITIAL_WINDOW_SIZE: self._streams.stream_window,
            Http2Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self._output.put(
            settings_frame(ours) + window_update(0, self._streams.window - WINDOW_DEFAULT)
        )

    def data_received(self, data: bytes) -> None:
        """Handle complete frames, and answer them in one write."""
        now = self.heard_at = self._loop.time()
        self._rest = self._rest[self._at :] + data if self._rest else data
        self._at = 0
        is_free = not self.turns.is_any_behind
        self._turn(now, now + TURN_S if is_free else now)

    def take_turn(self, until: float) -> None:
        """Handle more of the waiting frames."""
        self._has_asked = False
        if self._transport is not None and not self._is_slow:
            self._turn(self._loop.time(), until)

    def _turn(self, now: float, until: float) -> None:
        self._output.is_held = True
        try:
            if not self._has_preface:
                self._read_preface()
            if self._has_preface:
                self._at = self._streams.read_frames(self._rest, self._at, now, until)
        except Http2Violation as violation:
            self.fail(violation)
        finally:
            self._output.is_held = False
        if self._at >= len(self._rest):
            self._rest, self._at = b"", 0
        self._count_waiting(now)
        self._output.flush()
        if self._streams.has_more or self._is_paused:
            self._set_reading()

    def _read_preface(self) -> None:
        known = self._rest[: len(PREFACE)]
        if not PREFACE.startswith(known):
            raise violation(Http2Error.PROTOCOL_ERROR, "this port speaks gRPC only")
        if len(known) == len(PREFACE):
            self._has_preface = True
            self._at = len(PREFACE)

    def _count_waiting(self, now: float) -> None:
        size = self.waiting_bytes
        if size and self._transport is not None:
            self._fed_at = now
            self._has_waiting = True
            self._door.shared.waiting.hold(self, size, now)
        elif self._has_waiting:
            self._has_waiting = False
            self._door.shared.waiting.drop(self)

    def eof_received(self) -> bool:
        """Close the connection when the peer closes its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        del exc
        self._forget()
        self._door.closed(self)

    def _forget(self) -> None:
        self._transport = None
        self.is_closing = True
        self._streams.close_calls()
        self._output.close()
        self._rest, self._at = b"", 0
        self._resting.clear()
        self._door.shared.waiting.drop(self)
        self._door.shared.unread.drop(self)
        if self._door.methods.gate is not None:
            self._door.methods.gate.closed(self)

    def pause_writing(self) -> None:
        """Note that the peer has unread bytes."""
        self._is_unread = True
        self._taken_at = self._loop.time()

    def resume_writing(self) -> None:
        """Note that the peer has read everything."""
        self._is_unread = False
        self.count_unsent()

    def count_unsent(self) -> None:
        """Count unsent bytes after a write, or after data was held back."""
        if (self._is_unread or self._output.held_back_bytes) and self._transport is not None:
            self._count_unsent(self._transport)
        elif self._unsent_bytes:
            self._unsent_bytes = 0
            self._is_slow = False
            self._door.shared.unread.drop(self)
            self._set_reading()
        if self._resting and self.has_room:
            resting, self._resting = self._resting, []
            for late in resting:
                self.turns.ask(late)

    def _count_unsent(self, transport: asyncio.Transport) -> None:
        limits, now = self._door.limits, self._loop.time()
        size = self._output.unsent_bytes
        if size < self._unsent_bytes or not self._unsent_bytes:
            self._taken_at = now
        self._unsent_bytes = size
        # Held-back data does not count here: the peer's window updates must be read.
        is_slow = transport.get_write_buffer_size() > limits.slow_bytes
        if is_slow != self._is_slow:
            self._is_slow = is_slow
            self._set_reading()
        if size > limits.unsent_bytes_max:
            self.cut("slow_reader_cut", bytes=size)
        else:
            self._door.shared.unread.hold(self, size, now)

    def _set_reading(self) -> None:
        transport, has_more = self._transport, self._streams.has_more
        if transport is None or transport.is_closing():
            return
        if has_more and not (self._is_slow or self._has_asked):
            self._has_asked = True
            self.turns.ask(self)
        must_pause = has_more or self._is_slow
        if must_pause != self._is_paused:
            self._is_paused = must_pause
            if must_pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    # For calls and the door.

    @property
    def waiting_bytes(self) -> int:
        """Received bytes of incomplete frames and messages."""
        return len(self._rest) - self._at + self._streams.held_message_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that the peer has not taken."""
        return self._output.unsent_bytes

    @property
    def has_room(self) -> bool:
        """Whether the peer has taken enough to be sent more."""
        return self._output.unsent_bytes <= self._door.limits.slow_bytes

    def ask_for_turn(self, late: Late) -> None:
        """Give an answer its next turn, once the peer has read enough."""
        if self.has_room:
            self.turns.ask(late)
        elif not self.is_closing:
            self._resting.append(late)

    @property
    def socket_bytes(self) -> int:
        """Written bytes that the peer has not read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return has_tls(self._transport)

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Names in the peer's verified certificate; none without one."""
        return certificate_names(self._transport)

    @property
    def address(self) -> str:
        """The peer's address, for log lines."""
        return f"{self.peer_host}:{self.peer_port}"

    def field_of(self, head: RequestHead, name: bytes) -> bytes | None:
        """Return a header field; a field that cannot be decoded ends the connection."""
        try:
            return head.get(name)
        except Http2Violation as violation:
            self.fail(violation)
            return None

    def fail(self, violation: Http2Violation) -> None:
        """Tell the peer which rule it broke, and close the connection."""
        if self.is_closing:
            return
        now = self._loop.time()
        self._door.shared.note("http2_malformed", now, address=self.address, why=str(violation))
        self._output.put(goaway(self._streams.last_stream_id, violation.error, violation.message))
        self._close()

    def _close(self) -> None:
        """Close the connection after all written bytes have been sent."""
        self.is_closing = True
        self._output.flush()
        if self._transport is not None:
            self._transport.close()

    def cut(self, event: str, **facts: object) -> None:
        """Abort the connection at once, and drop unsent bytes."""
        transport = self._transport
        if transport is not None:
            self._door.shared.note(event, self._loop.time(), address=self.address, **facts)
            self._forget()
            transport.abort()

    def later(self, delay_s: float, work: Callable[..., None], *arguments: object) -> None:
        """Do something after a delay, in one write."""
        self._loop.call_later(delay_s, work, *arguments)

    def close_soon(self) -> None:
        """Take no more calls; close the connection when the open ones have ended."""
        if self._is_draining or self.is_closing:
            return
        self._is_draining = True
        # The client may have sent calls that are on their way: the last id follows later.
        self._output.put(
            goaway(STREAM_ID_MAX, Http2Error.NO_ERROR) + frame(FrameKind.PING, 0, 0, _PING_DRAIN)
        )
        self._loop.call_later(DRAIN_NOTICE_S, self._refuse_calls)

    def _refuse_calls(self) -> None:
        if self.is_closing or self._streams.refuses_calls:
            return
        self._streams.refuses_calls = True
        self._output.put(goaway(self._streams.last_stream_id, Http2Error.NO_ERROR))
        self.close_if_done()

    def close_if_done(self) -> None:
        """Close a draining connection without calls."""
        if self._streams.refuses_calls and not self._streams.calls and not self.is_closing:
            self._close()

    def ping_answered(self, payload: bytes) -> None:
        """Note the answer to one of our PINGs."""
        self._has_pinged = False
        if payload == _PING_DRAIN and self._is_draining:
            self._refuse_calls()

    # Periodic checks.

    def look(self, now: float) -> None:
        """End the connection if it stalls or is silent for too long."""
        self.end_if_stalled(now)
        if self._transport is None or self.is_closing:
            return
        limits = self._door.limits
        if (
            self._door.methods.gate is not None
            and self.caller is None
            and now - self._opened_at > UnknownLimits.S_MAX
        ):
            self.cut("not_authenticated")
            return
        silent_ms = (now - self.heard_at) * 1_000
        if not self._has_preface and (now - self._opened_at) * 1_000 > limits.opening_ms_max:
            self.cut("preface_late")
        elif silent_ms > limits.idle_ms_max:
            if self._streams.calls:
                self.cut("peer_vanished", silent_ms=round(silent_ms))
            else:
                self._door.shared.counts["silent_closed"] += 1
                self._output.put(goaway(self._streams.last_stream_id, Http2Error.NO_ERROR))
                self._close()
        elif silent_ms > limits.idle_ms_max / 2 and self._streams.calls and not self._has_pinged:
            self._has_pinged = True
            self._output.put(frame(FrameKind.PING, 0, 0, _PING_ALIVE))

    def end_if_stalled(self, now: float) -> None:
        """Cut the connection if a message stays incomplete or the peer takes no data."""
        transport = self._transport
        if transport is None:
            return
        late_at = now - self._door.limits.stalled_ms_max / 1_000
        if self._has_waiting and not self._streams.has_more and self._fed_at < late_at:
            self.cut("frame_late", bytes=self.waiting_bytes)
        elif self._is_unread or self._output.held_back_bytes:
            self._count_unsent(transport)
            if self._taken_at < late_at:
                self.cut("reader_stalled", bytes=self._unsent_bytes)
