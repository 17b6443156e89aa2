"""One connection: frames in, frames out, and never more of either than its limits allow.

Requests are handled as their bytes arrive; what they answer at once goes out in one write.  What
is answered later (after a flush, or when a message comes) is gathered until the loop's next turn,
so that a batch's answers share a write too.

A peer that does not read what it asked for is not read from either, and is cut off if answers pile
up nevertheless.  Bytes that are no frame end the connection: there is no telling where the next
one starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.ids import format_address, pack_host
from escrowmq.protocol.remoting import FrameSplitter

if TYPE_CHECKING:
    from escrowmq.broker.config import BrokerConfig
    from escrowmq.protocol.remoting import Frame

log = logging.getLogger(__name__)

TAKEN_S_MAX = 5.0
"""A peer that has read nothing of a frame for so long is taken not to get it."""
LOOK_S = 0.01
"""How often it is looked whether a full socket has taken more."""

NOBODY = pack_host("0.0.0.0", 0)  # noqa: S104 - it stands for an address that is not known


class Taken(Protocol):
    """Is told whether the socket took a frame."""

    def __call__(self, *, is_taken: bool) -> None:
        """Take note."""
        ...


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

    def __init__(self, config: BrokerConfig, owner: Owner) -> None:
        self._config = config
        self._owner = owner
        self._splitter = FrameSplitter(frame_bytes_max=config.frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._is_flush_scheduled = False
        self._is_reading = False
        self._is_slow = False
        self._unanswered = 0
        #: Bytes that were handed to the transport, ever.
        self._handed_bytes = 0
        #: Who wants to know about frames that wait in ``_out``, and how large those are.
        self._untold: list[Taken] = []
        self._untold_bytes = 0
        #: Who wants to know when so many bytes have left the transport, and until when.
        self._marks: deque[tuple[int, float, Taken]] = deque()
        self._is_looking = False
        #: Until so many bytes have left, nobody believes that the peer reads.
        self._stalled_bytes = 0
        self.address = ""
        #: As stored messages name their sender.
        self.born_host = NOBODY
        #: By the loop's clock.
        self.heard_at = 0.0
        #: As its heartbeats name it.
        self.client_id = ""

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.heard_at = self._loop.time()
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        if host:
            self.born_host = _packed(host, port)
            self.address = format_address(host, port)
        transport.set_write_buffer_limits(high=self._config.slow_bytes)
        if not self._owner.opened(self):
            log.warning("too_many_connections", extra={"address": self.address})
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle what is whole; answer it in one write."""
        self.heard_at = self._loop.time()
        self._is_reading = True
        try:
            for frame in self._splitter.feed(data):
                self._owner.handle(self, frame)
        except ProtocolViolation as violation:
            log.warning("connection_cut", extra={"address": self.address, "why": str(violation)})
            self.flush()
            self.close()
        finally:
            self._is_reading = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        del exc
        self._transport = None
        self._out.clear()
        self._owner.closed(self)
        self._give_up()

    def pause_writing(self) -> None:
        """The peer does not read what it asked for: ask it to wait, too."""
        self._is_slow = True
        self._set_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._is_slow = False
        self._set_reading()

    # What handlers call.

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """Send a whole frame, soon."""
        if self._transport is None:
            return
        self._out.append(data)
        if not (self._is_reading or self._is_flush_scheduled):
            self._is_flush_scheduled = True
            self._loop.call_soon(self.flush)

    @property
    def has_room(self) -> bool:
        """Whether the peer reads what it is sent: then one more frame is no burden."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        waiting_bytes = transport.get_write_buffer_size()
        return (
            waiting_bytes + self._untold_bytes <= self._config.slow_bytes
            and self._handed_bytes - waiting_bytes >= self._stalled_bytes
        )

    def send_and_tell(self, data: bytes, taken: Taken) -> None:
        """Send a whole frame, soon, and tell whether the socket took it.

        Not taken: the connection was lost before, or the peer read nothing for too long.
        """
        if not self.is_open:
            taken(is_taken=False)
            return
        self._untold.append(taken)
        self._untold_bytes += len(data)
        self.send(data)

    def flush(self) -> None:
        """Hand everything to the socket."""
        self._is_flush_scheduled = False
        transport = self._transport
        if transport is None or not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        transport.write(data)
        self._handed_bytes += len(data)
        self._out.clear()
        if self._untold:
            self._mark()
        if transport.get_write_buffer_size() > self._config.unread_bytes_max:
            log.warning("slow_reader_cut", extra={"address": self.address})
            transport.abort()

    def _mark(self) -> None:
        until = self._loop.time() + TAKEN_S_MAX
        self._marks.extend((self._handed_bytes, until, taken) for taken in self._untold)
        self._untold.clear()
        self._untold_bytes = 0
        if not self._is_looking:
            self._look()

    def _look(self) -> None:
        """Tell what the socket has taken."""
        self._is_looking = False
        transport = self._transport
        if transport is None or transport.is_closing():
            # What is lost leaves the transport as well.
            self._give_up()
            return
        gone_bytes = self._handed_bytes - transport.get_write_buffer_size()
        now = self._loop.time()
        while self._marks:
            at_bytes, until, taken = self._marks[0]
            if at_bytes > gone_bytes and until > now:
                self._is_looking = True
                self._loop.call_later(LOOK_S, self._look)
                return
            self._marks.popleft()
            if at_bytes > gone_bytes:
                self._stalled_bytes = at_bytes
            taken(is_taken=at_bytes <= gone_bytes)

    def _give_up(self) -> None:
        self._marks.extend((0, 0.0, taken) for taken in self._untold)
        self._untold.clear()
        while self._marks:
            self._marks.popleft()[2](is_taken=False)

    def owe(self) -> None:
        """A request is answered later; whoever owes too much is not read from."""
        self._unanswered += 1
        if self._unanswered == self._config.unanswered_max:
            self._set_reading()

    def settle(self) -> None:
        """An answer that was owed is there."""
        self._unanswered -= 1
        if self._unanswered == self._config.unanswered_max - 1:
            self._set_reading()

    def _set_reading(self) -> None:
        if self._transport is None:
            return
        if self._is_slow or self._unanswered >= self._config.unanswered_max:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """End it, after what was written."""
        if self._transport is not None:
            self._transport.close()


def _packed(host: str, port: int) -> bytes:
    ip = ip_address(host.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    return pack_host(str(mapped or ip), port)
