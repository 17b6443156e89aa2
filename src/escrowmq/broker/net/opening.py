"""Connections whose protocol has not begun: the first byte tells TLS from plaintext.

TLS and plaintext share each port. A TLS client speaks first, and its first byte is 0x16, with which
no other protocol of ours begins. After it comes the handshake, the most expensive thing that an
unknown peer can ask for. So handshakes take turns with everything else on the event loop, a step at
a time; unfinished ones are bounded in number, bytes and time. Above the number, the address with
the most unfinished ones loses its oldest, so that a flood from one address is its own loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_network
from typing import TYPE_CHECKING, cast

from escrowmq.broker.net.limits import Turns
from escrowmq.broker.net.tls_link import TlsLink

if TYPE_CHECKING:
    from escrowmq.broker.net.limits import ConnectionLimits
    from escrowmq.broker.net.tls import ServerTls

#: Time for the first byte and for the handshake.
OPENING_MS_MAX = 10_000
#: Handshakes that may be unfinished at a time.
HANDSHAKES_MAX = 1_024
#: Bytes of one handshake; the largest part is a chain of certificates.
HANDSHAKE_BYTES_MAX = 256 * 1024
#: Bytes that may wait for the head of a request that is refused because it came without TLS.
REFUSED_BYTES_MAX = 64 * 1024
_TLS_FIRST = 0x16
#: Addresses of IPv6 that count as one, because one owner has all of them.
_IPV6_PREFIX = 64

PlaintextAnswer = Callable[[bytes], "bytes | None"]
"""Returns the answer to a request that came without TLS; None until its head is complete."""


@dataclass(eq=False, kw_only=True, slots=True)
class Door:
    """A port, as far as new connections are concerned."""

    name: str
    #: The protocol's name in TLS.
    alpn: str
    #: Makes the protocol of a connection.
    make: Callable[[], asyncio.Protocol]
    answer_plaintext: PlaintextAnswer
    #: Whether another connection may open.
    has_room: Callable[[], bool]
    #: Whether a peer may stay silent; without TLS, the protocol's own limits then apply.
    may_be_silent: bool = False
    opening_ms_max: int = OPENING_MS_MAX
    opening: set[Opening] = field(default_factory=set)

    def close(self) -> None:
        """Cut all connections whose protocol has not begun."""
        for one in list(self.opening):
            one.cut()


class Openings:
    """What the new connections of all doors share."""

    def __init__(self, tls: ServerTls, limits: ConnectionLimits) -> None:
        self.tls, self.limits = tls, limits
        #: Turns of handshakes only: a flood of them must not delay connections that are behind.
        self.turns = Turns()
        self._handshakes: dict[str, dict[Opening, None]] = {}
        self.handshake_count = 0

    def factory(self, door: Door) -> Callable[[], asyncio.Protocol]:
        """Return what makes the protocol of each new connection of a door."""
        if self.tls.mode == "off":
            return door.make
        return lambda: Opening(self, door)

    def shaking(self, opening: Opening) -> None:
        """Note that a handshake begins; cut another one if there are too many."""
        if self.handshake_count >= HANDSHAKES_MAX:
            most = max(self._handshakes.values(), key=len)
            oldest = next(iter(most))
            oldest.fail("too many handshakes are unfinished", "handshake_crowded_out")
        self._handshakes.setdefault(opening.group, {})[opening] = None
        self.handshake_count += 1

    def shaken(self, opening: Opening) -> None:
        """Note that a handshake has ended."""
        of_group = self._handshakes.get(opening.group)
        if of_group is not None and opening in of_group:
            del of_group[opening]
            self.handshake_count -= 1
            if not of_group:
                del self._handshakes[opening.group]


class Opening(asyncio.Protocol):
    """A connection until its protocol begins."""

    def __init__(self, openings: Openings, door: Door) -> None:
        self._openings, self._door = openings, door
        self._loop = asyncio.get_running_loop()
        #: None before the connection is made, and once its protocol has begun.
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Not None while the handshake lasts.
        self._link: TlsLink | None = None
        self._handshake_bytes = 0
        self._has_asked = False
        #: The request that is refused, and whether its answer has been sent.
        self._unsecured = b""
        self._is_refused = False
        #: Peers with one group share a bound.
        self.address = self.group = ""

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte; refuse the connection if there are too many."""
        # uvloop's transports have the methods of asyncio.Transport, but not its type.
        self._transport = cast("asyncio.Transport", transport)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.address, self.group = f"{host}:{port}", _group(host)
        if self._door.has_room():
            self._door.opening.add(self)
            self._timer = self._loop.call_later(self._door.opening_ms_max / 1_000, self._late)
        elif self._openings.tls.is_required:
            self.fail("", "too_many_connections")
        else:
            # The protocol refuses it in its own words.
            self._begin(b"")

    def data_received(self, data: bytes) -> None:
        """Tell TLS from plaintext by the first byte."""
        if self._transport is None:
            return
        if self._link is not None:
            self._shake_with(data)
        elif self._unsecured or self._is_refused:
            self._refuse(data)
        elif data[0] == _TLS_FIRST:
            self._begin_handshake(data)
        elif self._openings.tls.is_required:
            self._note("tls_mismatch", is_tls=False)
            self._refuse(data)
        else:
            self._begin(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        del exc
        self._leave()

    def _late(self) -> None:
        is_tls = self._link is not None or self._openings.tls.is_required
        if self._door.may_be_silent and not is_tls:
            self._begin(b"")
        else:
            self.fail("the peer is too slow")

    # Plaintext.

    def _begin(self, data: bytes) -> None:
        """Let the protocol serve the connection without TLS."""
        transport, protocol = self._transport, self._door.make()
        assert transport is not None
        self._leave()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if data and not transport.is_closing():
            protocol.data_received(data)

    def _refuse(self, data: bytes) -> None:
        """Answer a request without TLS with what is missing."""
        transport = self._transport
        if transport is None or self._is_refused:
            return
        self._unsecured += data
        answer = self._door.answer_plaintext(self._unsecured)
        if answer is None and len(self._unsecured) <= REFUSED_BYTES_MAX:
            return
        self._is_refused, self._unsecured = True, b""
        transport.write(answer or b"")
        # Close only our side: closing with unread input may reset the connection too early.
        transport.write_eof()

    # TLS.

    def _begin_handshake(self, data: bytes) -> None:
        context = self._openings.tls.context(self._door.alpn)
        transport = self._transport
        assert transport is not None
        if context is None:
            self.fail("TLS is off", "tls_mismatch", is_tls=True)
            return
        self._openings.shaking(self)
        self._link = TlsLink(transport, context)
        self._shake_with(data)

    def _shake_with(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or self._link is None:
            return
        self._handshake_bytes += len(data)
        if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
            self.fail("the handshake is too large")
            return
        self._link.feed(data)
        transport.pause_reading()
        if not self._has_asked:
            self._has_asked = True
            self._openings.turns.ask(self)

    def take_turn(self, until: float) -> None:
        """Do one step of the handshake."""
        del until
        self._has_asked = False
        link, transport = self._link, self._transport
        if link is None or transport is None:
            # It was cut while it waited for its turn.
            return
        try:
            is_done = link.shake()
        except OSError as error:
            # Errors of ssl are OSErrors.
            self.fail(str(error), is_gentle=True)
            return
        if is_done:
            protocol = self._door.make()
            self._leave()
            link.start(protocol)
        else:
            transport.resume_reading()

    # The end.

    def _leave(self) -> None:
        """Forget the connection, which has ended or goes to its protocol."""
        self._openings.shaken(self)
        self._door.opening.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._link = self._timer = None

    def _note(self, event: str, **facts: object) -> None:
        facts |= {"address": self.address, "port": self._door.name}
        self._openings.limits.note(event, self._loop.time(), **facts)

    def fail(
        self,
        reason: str,
        event: str = "opening_failed",
        *,
        is_gentle: bool = False,
        **facts: object,
    ) -> None:
        """Note why the connection ends, and end it; gently, so that the peer gets an alert."""
        transport = self._transport
        if transport is None:
            return
        if not self._is_refused:
            self._note(event, reason=reason, **facts)
        self._leave()
        transport.close() if is_gentle else transport.abort()

    def cut(self) -> None:
        """End the connection, because the broker stops."""
        transport = self._transport
        if transport is not None:
            self._leave()
            transport.abort()


def _group(host: str) -> str:
    """Return the address, or for IPv6 the network that one owner has."""
    host = host.partition("%")[0]
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _IPV6_PREFIX), strict=False))
