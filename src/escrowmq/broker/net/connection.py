"""One connection: frames in and frames out, both within limits.

The broker handles requests as their bytes arrive, and writes all immediate answers at once. Later
answers (after a flush, or when a message comes) are gathered until the event loop's next turn, so
that the answers of a batch also share a write. No connection holds the loop for long: frames that
do not fit into one turn wait for later turns, in order, and until then nothing more is read.

If a peer does not read its answers, the broker stops reading from it, and cuts it if answers still
pile up. The broker also cuts a peer that begins a frame and does not end it. Malformed bytes end
the connection, because the start of the next frame is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Protocol, cast

from escrowmq.broker.net.limits import TURN_S, ConnectionLimits, UnknownLimits
from escrowmq.broker.net.peers import pack_peer
from escrowmq.broker.net.taking import Taking
from escrowmq.broker.net.tls import certificate_names, has_tls
from escrowmq.broker.state.client_links import Taken
from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.ids import format_address, pack_host
from escrowmq.protocol.remoting.frames import FrameSplitter, RemotingFrame

if TYPE_CHECKING:
    from escrowmq.broker.access.known_users import KnownUser
    from escrowmq.broker.access.serving import AccessServing

UNKNOWN_PEER = pack_host("0.0.0.0", 0)  # noqa: S104 - it stands for an unknown address
#: Answers above this size go to the socket at once.
GATHERED_BYTES_MAX = 1024 * 1024


class Owner(Protocol):
    """Owner of the connections."""

    def opened(self, connection: ClientConnection) -> bool:
        """Note a new connection; return False if it is one too many."""
        ...

    def handle(self, connection: ClientConnection, frame: RemotingFrame) -> None:
        """Handle a frame."""
        ...

    def closed(self, connection: ClientConnection) -> None:
        """Note a closed connection."""
        ...


class ClientConnection(asyncio.Protocol):
    """Connection of a RocketMQ client, our SDK or a tool; its peer may also send garbage."""

    def __init__(
        self, limits: ConnectionLimits, owner: Owner, access: AccessServing | None = None
    ) -> None:
        self._limits = limits
        #: None without access control.
        self._gate = gate = None if access is None else access.gate
        #: Cuts the connection if it gets no user.
        self._timer: asyncio.TimerHandle | None = None
        #: The user that it belongs to, and how many of its requests had none.
        self.caller: KnownUser | None = None
        self.refusals = 0
        self.peer_host = ""
        self._unanswered_max = limits.config.unanswered_max
        self._owner = owner
        #: Offsets that the broker told this peer, by topic, queue and incarnation of the topic.
        self.told: dict[tuple[str, int, int], int] = {}
        bytes_max = limits.config.frame_bytes_max
        self._splitter = FrameSplitter(
            frame_bytes_max=bytes_max if gate is None else min(bytes_max, UnknownLimits.BYTES_MAX)
        )
        #: None before the connection is made, and once it is closed or cut.
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        #: Frames that wait for their turn, and their bytes.
        self._frames: Iterator[RemotingFrame] | None = None
        self._frames_bytes = 0
        self._next: RemotingFrame | None = None
        #: Whether the connection waits for its next turn.
        self._has_asked = False
        #: When the incomplete frame began.
        self._begun_at = 0.0
        self._has_waiting = False
        #: Whether a frame of this connection has been handled.
        self._is_known = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_scheduled = False
        self._is_reading = False
        #: Whether the peer has unread bytes, how many, and when it last read some.
        self._is_unread = False
        self._unread_bytes = 0
        self._read_at = 0.0
        self._is_slow = False
        self._must_wait = False
        self._unanswered = 0
        #: Whether the broker owes the peer too many answers.
        self._is_owed = False
        self._taking = Taking()
        self.address = ""
        #: The peer's address, in the form that stored messages use.
        self.born_host = UNKNOWN_PEER
        #: When bytes last came from the peer, on the event loop's clock.
        self.heard_at = 0.0
        #: The id in the client's heartbeats.
        self.client_id = ""

    @property
    def is_tls(self) -> bool:
        """Whether the connection uses TLS."""
        return has_tls(self._transport)

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Names in the peer's verified certificate; none without one."""
        return certificate_names(self._transport)

    @property
    def peer(self) -> str:
        """The peer's name in records of decisions."""
        return self.client_id or self.address

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up a new connection, or cut it if there are too many."""
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.heard_at = self._loop.time()
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        if host:
            self.born_host = pack_peer(host, port)
            self.address = format_address(host, port)
            self.peer_host = host
        if self._gate is not None:
            self._timer = self._loop.call_later(UnknownLimits.S_MAX, self.cut, "not_authenticated")
            self._gate.opened(self)
        # With this limit asyncio reports both the first unread byte and the last one that is read.
        transport.set_write_buffer_limits(high=0)
        if not self._owner.opened(self):
            self.cut("too_many_connections")

    def data_received(self, data: bytes) -> None:
        """Handle complete frames, and answer them in one write."""
        self.heard_at = self._loop.time()
        assert self._frames is None, "nothing is read before the last bytes are handled"
        self._frames_bytes = self._splitter.buffered_bytes + len(data)
        frames = self._splitter.feed(data)
        if not self._limits.turns.is_any_behind:
            self._turn(frames, self.heard_at, self.heard_at + TURN_S)
        elif self._is_known:
            # Handle one frame ahead of connections that are behind, so small requests do not wait.
            self._turn(frames, self.heard_at, self.heard_at)
        else:
            # A new peer waits its turn, or one that reconnects for each request would be first.
            self._go_on_with(frames)
            self._count_waiting(self.heard_at, is_anew=True)

    def _turn(self, frames: Iterator[RemotingFrame], now: float, until: float) -> None:
        """Handle frames until a deadline."""
        handle = self._owner.handle
        time = self._loop.time
        is_one_whole = False
        todo = frames if self._next is None else chain((self._next,), frames)
        self._next = None
        self._is_reading = True
        try:
            for frame in todo:
                # Checked only if there is another frame: a single request is already done.
                if is_one_whole and (self._must_wait or time() > until):
                    self._next = frame
                    break
                is_one_whole = self._is_known = True
                handle(self, frame)
            else:
                self._frames_bytes = 0
        except ProtocolViolation as violation:
            self._frames_bytes = 0
            self._limits.note("frame_malformed", now, address=self.address, why=str(violation))
            self.flush()
            self.close()
        finally:
            self._is_reading = False
        self._go_on_with(frames if self._frames_bytes else None)
        self._count_waiting(now, is_anew=is_one_whole)
        self.flush()

    def _go_on_with(self, frames: Iterator[RemotingFrame] | None) -> None:
        """Keep the remaining frames for the next turn."""
        was_behind = self._frames is not None
        if self._transport is None:
            frames = self._next = None
        self._frames = frames
        if was_behind or frames is not None:
            self._set_reading()

    def take_turn(self, until: float) -> None:
        """Handle more of the waiting frames."""
        self._has_asked = False
        if self._frames is not None and not self._must_wait:
            self._turn(self._frames, self._loop.time(), until)

    def _count_waiting(self, now: float, *, is_anew: bool) -> None:
        size = self.waiting_bytes
        if size and self._transport is not None:
            if is_anew or not self._has_waiting:
                self._begun_at = now
            self._has_waiting = True
            self._limits.waiting.hold(self, size, now, anew=is_anew)
        elif self._has_waiting:
            self._has_waiting = False
            self._limits.waiting.drop(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection has closed."""
        del exc
        self._forget()
        self._owner.closed(self)
        self._taking.give_up()

    def admitted(self) -> None:
        """Note that the connection has a user: its usual limits count from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._splitter.allow(self._limits.config.frame_bytes_max)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._gate is not None:
            self._gate.closed(self)
        self._transport = None
        self._must_wait = True
        self._out.clear()
        self._frames_bytes = 0
        self._go_on_with(None)
        self._limits.waiting.drop(self)
        self._limits.unread.drop(self)

    def pause_writing(self) -> None:
        """Note that the peer has unread bytes."""
        self._is_unread = True
        self._unread_bytes = 0
        self._read_at = self._loop.time()

    def resume_writing(self) -> None:
        """Note that the peer has read everything."""
        self._is_unread = False
        self._limits.unread.drop(self)
        if self._is_slow:
            self._is_slow = False
            self._set_reading()

    # For handlers.

    @property
    def is_open(self) -> bool:
        """Whether frames can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        """Received bytes that are not handled yet."""
        return self._frames_bytes or self._splitter.buffered_bytes

    @property
    def unread_bytes(self) -> int:
        """Written bytes that the peer has not read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """Queue a complete frame for sending."""
        if self._transport is None:
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > GATHERED_BYTES_MAX:
            self.flush()
        elif not (self._is_reading or self._is_flush_scheduled):
            self._is_flush_scheduled = True
            self._loop.call_soon(self.flush)

    @property
    def has_room(self) -> bool:
        """Whether the peer keeps up with reading, so that it can take another frame."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self._taking.has_room(transport, self._limits.config.slow_bytes)

    def send_and_tell(self, data: bytes, taken: Taken) -> None:
        """Queue a complete frame, and report whether the socket took it.

        It was not taken if the connection was lost first, or if the peer read nothing for too long.
        """
        if not self.is_open:
            taken(is_taken=False)
            return
        self._taking.expect(len(data), taken)
        self.send(data)

    def flush(self) -> None:
        """Write all gathered frames to the socket."""
        self._is_flush_scheduled = False
        transport = self._transport
        if transport is None or not self._out:
            return
        transport.write(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        size, self._out_bytes = self._out_bytes, 0
        self._out.clear()
        self._taking.handed(size, transport)
        if self._is_unread:
            self._unread_bytes += size
            self._count_unread(transport)

    def _count_unread(self, transport: asyncio.Transport) -> None:
        config, now = self._limits.config, self._loop.time()
        size = transport.get_write_buffer_size()
        if size < self._unread_bytes:
            self._read_at = now
        self._unread_bytes = size
        if size > config.slow_bytes and not self._is_slow:
            # The peer asks faster than it reads, so stop reading from it.
            self._is_slow = True
            self._set_reading()
        if size > config.peer_unread_bytes_max:
            self.cut("slow_reader_cut", bytes=size)
        else:
            self._limits.unread.hold(self, size, now)

    def owe(self) -> None:
        """Count a request whose answer comes later; with too many of them, stop reading."""
        self._unanswered += 1
        if self._unanswered == self._unanswered_max:
            self._is_owed = True
            self._set_reading()

    def answered(self) -> None:
        """Count an owed answer as given; resume reading at three quarters of the limit."""
        self._unanswered -= 1
        if self._is_owed and self._unanswered <= self._unanswered_max * 3 // 4:
            self._is_owed = False
            self._set_reading()

    def _set_reading(self) -> None:
        self._must_wait = self._is_slow or self._is_owed
        if self._transport is None:
            self._must_wait = True
        elif self._frames is not None:
            self._transport.pause_reading()
            if not (self._must_wait or self._is_reading or self._has_asked):
                self._has_asked = True
                self._limits.turns.ask(self)
        elif self._must_wait:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection after all written bytes have been sent."""
        if self._transport is not None:
            self._transport.close()

    def cut(self, event: str, **facts: object) -> None:
        """Abort the connection at once, and drop unsent bytes."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._limits.note(event, self._loop.time(), address=self.address, **facts)
            self._forget()
            transport.abort()

    # Periodic checks.

    def end_if_stalled(self, now: float) -> None:
        """Cut the connection if a frame stays incomplete or the peer reads none of its answers."""
        late_at = now - self._limits.config.stalled_ms_max / 1_000
        transport = self._transport
        if transport is None:
            return
        if self._has_waiting and self._frames is None and self._begun_at < late_at:
            self.cut("frame_late", bytes=self._splitter.buffered_bytes)
        elif self._is_unread:
            self._count_unread(transport)
            if self._read_at < late_at:
                self.cut("reader_stalled", bytes=self._unread_bytes)

    def end_if_silent(self, since: float) -> None:
        """Close a connection that is silent; cut it if the peer has unread answers."""
        if self.heard_at < since:
            if self._is_unread:
                self.cut("reader_stalled", bytes=self._unread_bytes)
            else:
                self._limits.counts["silent_closed"] += 1
                self.close()
