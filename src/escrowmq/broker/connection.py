"""One connection: frames in, frames out, and never more of either than its limits allow.

Requests are handled as their bytes arrive; what they answer at once goes out in one write.  What
is answered later (after a flush, or when a message comes) is gathered until the loop's next turn,
so that a batch's answers share a write too.  Nobody has the loop for long: frames that do not fit
into one turn are handled in the next ones, in order, and until then nothing more is read.

A peer that does not read what it asked for is not read from either, and is cut off if answers pile
up nevertheless, as is one that begins a frame and does not end it.  Bytes that are no frame end the
connection: there is no telling where the next one starts.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from itertools import chain
from typing import TYPE_CHECKING, Protocol, cast

from escrowmq.broker.limits import TURN_S
from escrowmq.broker.taking import Taken, Taking
from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.ids import format_address, pack_host
from escrowmq.protocol.remoting import FrameSplitter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.limits import Limits
    from escrowmq.protocol.remoting import Frame

NOBODY = pack_host("0.0.0.0", 0)  # noqa: S104 - it stands for an address that is not known
#: More than this is handed to the socket at once, not gathered.
GATHERED_BYTES_MAX = 1024 * 1024


class Owner(Protocol):
    """Whose connections these are."""

    def opened(self, connection: Connection) -> bool:
        """Somebody connects; False if that is one too many."""
        ...

    def handle(self, connection: Connection, frame: Frame) -> None:
        """Somebody asks."""
        ...

    def closed(self, connection: Connection) -> None:
        """Somebody is gone."""
        ...


class Connection(asyncio.Protocol):
    """A stock client, an SDK, a tool, or somebody who sends garbage."""

    def __init__(self, limits: Limits, owner: Owner) -> None:
        self._limits = limits
        self._unanswered_max = limits.config.unanswered_max
        self._owner = owner
        #: Offsets that it was told, by topic, queue and where the topic began.
        self.told: dict[tuple[str, int, int], int] = {}
        self._splitter = FrameSplitter(frame_bytes_max=limits.config.frame_bytes_max)
        #: Until it is closed or cut.
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        #: Frames whose turn has not come, and the bytes that they are made of.
        self._frames: Iterator[Frame] | None = None
        self._frames_bytes = 0
        self._next: Frame | None = None
        #: For its next turn.
        self._has_asked = False
        #: When the frame began that is not whole yet.
        self._begun_at = 0.0
        self._has_waiting = False
        #: Something of it was handled.
        self._is_known = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_flush_scheduled = False
        self._is_reading = False
        #: The peer has not read all of what was written, so much of it, and when it read last.
        self._is_unread = False
        self._unread_bytes = 0
        self._read_at = 0.0
        self._is_slow = False
        self._must_wait = False
        self._unanswered = 0
        #: Too many.
        self._is_owed = False
        self._taking = Taking()
        self.address = ""
        #: As stored messages name their sender.
        self.born_host = NOBODY
        #: By the loop's clock.
        self.heard_at = 0.0
        #: As its heartbeats name it.
        self.client_id = ""

    @property
    def peer(self) -> str:
        """The peer's name in records of decisions."""
        return self.client_id or self.address

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        # uvloop's have all that a transport has, and are none by type.
        self._transport = transport = cast("asyncio.Transport", transport)
        self.heard_at = self._loop.time()
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        if host:
            self.born_host = _packed(host, port)
            self.address = format_address(host, port)
        # So that we hear of the first byte that the peer has not read, and of the last.
        transport.set_write_buffer_limits(high=0)
        if not self._owner.opened(self):
            self.cut("too_many_connections")

    def data_received(self, data: bytes) -> None:
        """Handle what is whole; answer it in one write."""
        self.heard_at = self._loop.time()
        assert self._frames is None, "nothing is read before the last bytes are handled"
        self._frames_bytes = self._splitter.buffered_bytes + len(data)
        frames = self._splitter.feed(data)
        if not self._limits.turns.is_any_behind:
            self._turn(frames, self.heard_at, self.heard_at + TURN_S)
        elif self._is_known:
            # One frame before those who are behind: who asks for little does not wait for them.
            self._turn(frames, self.heard_at, self.heard_at)
        else:
            # Or whoever connects anew each time would always be first.
            self._go_on_with(frames)
            self._count_waiting(self.heard_at, is_anew=True)

    def _turn(self, frames: Iterator[Frame], now: float, until: float) -> None:
        """Handle frames for a while."""
        handle = self._owner.handle
        time = self._loop.time
        is_one_whole = False
        todo = frames if self._next is None else chain((self._next,), frames)
        self._next = None
        self._is_reading = True
        try:
            for frame in todo:
                # Only when there is a next one: whoever asks for one thing is done.
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

    def _go_on_with(self, frames: Iterator[Frame] | None) -> None:
        """Keep the rest for the next turn."""
        was_behind = self._frames is not None
        if self._transport is None:
            frames = self._next = None
        self._frames = frames
        if was_behind or frames is not None:
            self._set_reading()

    def take_turn(self, until: float) -> None:
        """Handle more of what came."""
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
        """Nobody is there any more."""
        del exc
        self._forget()
        self._owner.closed(self)
        self._taking.give_up()

    def _forget(self) -> None:
        self._transport = None
        self._must_wait = True
        self._out.clear()
        self._frames_bytes = 0
        self._go_on_with(None)
        self._limits.waiting.drop(self)
        self._limits.unread.drop(self)

    def pause_writing(self) -> None:
        """The peer has not read everything."""
        self._is_unread = True
        self._unread_bytes = 0
        self._read_at = self._loop.time()

    def resume_writing(self) -> None:
        """The peer has read everything."""
        self._is_unread = False
        self._limits.unread.drop(self)
        if self._is_slow:
            self._is_slow = False
            self._set_reading()

    # What handlers call.

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        """What came in and waits."""
        return self._frames_bytes or self._splitter.buffered_bytes

    @property
    def unread_bytes(self) -> int:
        """What was written and not read."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send(self, data: bytes) -> None:
        """Send a whole frame, soon."""
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
        """Whether the peer reads what it is sent: then one more frame is no burden."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return self._taking.has_room(transport, self._limits.config.slow_bytes)

    def send_and_tell(self, data: bytes, taken: Taken) -> None:
        """Send a whole frame, soon, and tell whether the socket took it.

        Not taken: the connection was lost before, or the peer read nothing for too long.
        """
        if not self.is_open:
            taken(is_taken=False)
            return
        self._taking.expect(len(data), taken)
        self.send(data)

    def flush(self) -> None:
        """Hand everything to the socket."""
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
            # It asks faster than it reads: let it wait, too.
            self._is_slow = True
            self._set_reading()
        if size > config.peer_unread_bytes_max:
            self.cut("slow_reader_cut", bytes=size)
        else:
            self._limits.unread.hold(self, size, now)

    def owe(self) -> None:
        """A request is answered later; whoever owes too much is not read from."""
        self._unanswered += 1
        if self._unanswered == self._unanswered_max:
            self._is_owed = True
            self._set_reading()

    def settle(self) -> None:
        """An answer that was owed is there."""
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
        """End it, after what was written."""
        if self._transport is not None:
            self._transport.close()

    def cut(self, event: str, **facts: object) -> None:
        """End it now, whatever is under way."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._limits.note(event, self._loop.time(), address=self.address, **facts)
            self._forget()
            transport.abort()

    # What happens by itself.

    def end_if_stalled(self, now: float) -> None:
        """Cut it if a frame does not end, or if nothing is read of what was answered."""
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
        """Close it if nothing was heard of it; at once if it does not read its last answers."""
        if self.heard_at < since:
            if self._is_unread:
                self.cut("reader_stalled", bytes=self._unread_bytes)
            else:
                self._limits.counts["silent_closed"] += 1
                self.close()


def _packed(host: str, port: int) -> bytes:
    ip = ip_address(host.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return pack_host(str(mapped or ip), port)
