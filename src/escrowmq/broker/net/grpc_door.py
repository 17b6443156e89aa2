"""The port for gRPC clients: accepts connections, with or without TLS, and drains them.

TLS and plaintext share the port. A TLS client speaks first, and its first byte is 0x16, which no
HTTP/2 client sends; the door peeks at it before it hands the socket to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl

from escrowmq.broker.net.grpc_call import GrpcMethods
from escrowmq.broker.net.grpc_connection import GrpcConnection
from escrowmq.broker.net.grpc_deadlines import Deadlines
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits

BACKLOG = 4_096
#: Sockets that are accepted in one turn of the event loop.
ACCEPTS_MAX = 64
#: Time without accepting after the process ran out of files.
NO_FILES_S = 1.0
LOOK_S = 1.0
_TLS_FIRST = b"\x16"
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class GrpcDoor:
    """Accepts gRPC clients: ``start`` it, ``close_soon`` to drain, ``close`` to end."""

    def __init__(
        self,
        methods: GrpcMethods,
        limits: GrpcLimits,
        shared: ConnectionLimits,
        *,
        tls: ssl.SSLContext | None = None,
        requires_tls: bool = False,
    ) -> None:
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._tls, self._requires_tls = tls, requires_tls
        self.methods, self.limits = methods, limits
        #: Budgets, turns and counts that all connections of a broker share.
        self.shared = shared
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self.deadlines = Deadlines()
        self.connections: set[GrpcConnection] = set()
        #: Accepted sockets that have not sent a byte, or are in the TLS handshake.
        self._opening: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: None until ``close`` is called, and set when the last connection has closed after that.
        self._all_gone: asyncio.Event | None = None

    def start(self, bound: socket.socket) -> None:
        """Accept clients on a bound socket."""
        bound.setblocking(False)  # noqa: FBT003 - the standard library's signature
        bound.listen(BACKLOG)
        self._listening = bound
        self._loop.add_reader(bound, self._accept)
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _accept(self) -> None:
        assert self._listening is not None
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._rest_from_accepting(error)
                return
            accepted.setblocking(False)  # noqa: FBT003 - the standard library's signature
            if len(self.connections) + len(self._opening) >= self.limits.connections_max:
                self.shared.note("too_many_connections", self.time(), port="grpc")
                accepted.close()
                continue
            opening = self._loop.create_task(self._open(accepted))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _rest_from_accepting(self, error: OSError) -> None:
        """Wait, because a full table of files would let the event loop spin."""
        self.shared.note("accept_failed", self.time(), reason=error.strerror)
        assert self._listening is not None
        self._loop.remove_reader(self._listening)
        self._loop.call_later(NO_FILES_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening, self._accept)

    async def _open(self, accepted: socket.socket) -> None:
        """Tell TLS from plaintext, and start the connection."""
        try:
            async with asyncio.timeout(self.limits.opening_ms_max / 1_000):
                is_tls = await self._first_byte(accepted) == _TLS_FIRST
                if is_tls != (self._tls is not None) and (is_tls or self._requires_tls):
                    self.shared.note("tls_mismatch", self.time(), is_tls=is_tls)
                    accepted.close()
                    return
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await self._loop.connect_accepted_socket(
                    lambda: GrpcConnection(self), accepted, ssl=self._tls if is_tls else None
                )
        except (OSError, TimeoutError) as error:
            # A failed handshake is an OSError too.
            self.shared.note("opening_failed", self.time(), reason=str(error))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    async def _first_byte(self, accepted: socket.socket) -> bytes:
        """Return the first byte, which stays in the socket; empty if the peer has gone."""
        while True:
            try:
                return accepted.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                ready = self._loop.create_future()
                self._loop.add_reader(accepted, _set_ready, ready)
                try:
                    await ready
                finally:
                    self._loop.remove_reader(accepted)

    # Called by connections.

    def opened(self, connection: GrpcConnection) -> bool:
        """Register a new connection; return False if it comes too late."""
        self.connections.add(connection)
        return self._all_gone is None

    def closed(self, connection: GrpcConnection) -> None:
        """Forget a closed connection."""
        self.connections.discard(connection)
        if self._all_gone is not None and not self.connections:
            self._all_gone.set()

    # Periodic work.

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        now = self.time()
        for connection in list(self.connections):
            connection.look(now)

    # The end.

    def close_soon(self) -> None:
        """Accept no more clients and no more calls; open calls may end."""
        listening, self._listening = self._listening, None
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        for opening in self._opening:
            opening.cancel()
        for connection in list(self.connections):
            connection.close_soon()

    async def close(self, grace_s: float) -> None:
        """Drain all connections; cut those that are not done in time."""
        self.close_soon()
        self._all_gone = asyncio.Event()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), grace_s)
        for connection in list(self.connections):
            connection.cut("stopping")
        await asyncio.gather(*self._opening, return_exceptions=True)
        self.deadlines.close()
        if self._timer is not None:
            self._timer.cancel()


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
