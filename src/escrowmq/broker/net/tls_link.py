"""One TLS connection of a peer: a transport on top of a plain one.

asyncio's own TLS transport holds 256 KiB per connection, and it does not tell how many bytes of
its answers the peer has left unread. This one holds no buffer of its own: bytes go through OpenSSL
to the plain transport, whose limits and sizes are those of the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

#: The most plaintext of one TLS record.
RECORD_BYTES = 16_384
#: Takes the place of a protocol before the connection begins and after its end.
_NONE = asyncio.Protocol()


class TlsLink(asyncio.Transport, asyncio.Protocol):
    """The TLS side of one connection: a transport for its protocol.

    Feed the handshake with ``feed`` and ``shake``; ``start`` then hands over to the protocol.
    """

    def __init__(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._protocol = _NONE
        #: Whether our side has ended the connection, so that nothing more is sent.
        self._is_ended = False

    # The handshake.

    def feed(self, data: bytes) -> None:
        """Take bytes of the handshake."""
        self._incoming.write(data)

    def shake(self) -> bool:
        """Do one step of the handshake; return whether it is complete. Raise ssl.SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            # If the handshake failed, this is the alert that tells the peer why.
            self._flush()
        return True

    def start(self, protocol: asyncio.Protocol) -> None:
        """Let the protocol serve the connection."""
        self._protocol = protocol
        self._plain.set_protocol(self)
        self._plain.resume_reading()
        protocol.connection_made(self)
        # The peer may have sent its first request with the end of the handshake.
        self._deliver()

    # Called by the plain transport.

    def data_received(self, data: bytes) -> None:
        """Decrypt what has arrived."""
        if not self._is_ended:
            self._incoming.write(data)
            self._deliver()

    def _deliver(self) -> None:
        """Give the protocol everything that is complete, at once."""
        parts: list[bytes] = []
        is_over = False
        try:
            while part := self._tls.read(RECORD_BYTES):
                parts.append(part)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        except ssl.SSLError:
            # Bytes that cannot be decrypted: no more can be said to this peer.
            self.abort()
            return
        self._flush()
        if parts and not self.is_closing():
            self._protocol.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if is_over and not self.is_closing() and not self._protocol.eof_received():
            self.close()

    def eof_received(self) -> bool | None:
        """Tell the protocol that the peer sends no more."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the protocol that the connection has ended."""
        # Dropping the reference breaks the cycle between the protocol and its transport.
        protocol, self._protocol = self._protocol, _NONE
        self._is_ended = True
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the protocol that the peer has unread bytes."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Tell the protocol that the peer has read enough."""
        self._protocol.resume_writing()

    # Called by the protocol, as on any transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send bytes."""
        if self._is_ended or not data:
            return
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError:
            self.abort()
            return
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._plain.write(self._outgoing.read())

    def write_eof(self) -> None:
        """Send no more; the peer may still read what was sent."""
        self._end()
        if not self._plain.is_closing() and self._plain.can_write_eof():
            self._plain.write_eof()

    def can_write_eof(self) -> bool:
        """Return that ``write_eof`` may be called."""
        return True

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            # It raises because the peer's own end has not come, and nothing waits for that.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()

    def close(self) -> None:
        """Close the connection after all written bytes have been sent."""
        self._end()
        self._plain.close()

    def abort(self) -> None:
        """Close the connection at once, and drop unsent bytes."""
        self._is_ended = True
        self._plain.abort()

    def is_closing(self) -> bool:
        """Return whether no more can be sent."""
        return self._is_ended or self._plain.is_closing()

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes have not left yet."""
        return self._plain.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the protocol learns that bytes are unread."""
        self._plain.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return these limits."""
        return self._plain.get_write_buffer_limits()

    def pause_reading(self) -> None:
        """Receive nothing until ``resume_reading``."""
        self._plain.pause_reading()

    def resume_reading(self) -> None:
        """Receive again."""
        self._plain.resume_reading()

    def is_reading(self) -> bool:
        """Return whether bytes are received."""
        return self._plain.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol serve the connection."""
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that serves the connection."""
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's own type
        """Return a fact about the connection."""
        match name:
            case "ssl_object":
                return self._tls
            case "peercert":
                return self._tls.getpeercert()
            case "cipher":
                return self._tls.cipher()
            case _:
                return self._plain.get_extra_info(name, default)
