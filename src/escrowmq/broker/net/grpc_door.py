"""The port for gRPC clients: accepts connections, with or without TLS, and drains them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from escrowmq.broker.net.grpc_call import GrpcMethods
from escrowmq.broker.net.grpc_connection import GrpcConnection
from escrowmq.broker.net.grpc_deadlines import Deadlines
from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.broker.net.limits import ConnectionLimits
from escrowmq.broker.net.opening import Door, Opening, Openings
from escrowmq.broker.net.plaintext_refusals import refuse_grpc
from escrowmq.broker.net.tls import GRPC

BACKLOG = 4_096
#: Sockets that are accepted in one turn of the event loop.
ACCEPTS_MAX = 64
#: Time without accepting after the process ran out of files.
NO_FILES_S = 1.0
LOOK_S = 1.0
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class GrpcDoor:
    """Accepts gRPC clients: ``start`` it, ``close_soon`` to drain, ``close`` to end."""

    def __init__(
        self,
        methods: GrpcMethods,
        limits: GrpcLimits,
        openings: Openings,
    ) -> None:
        self._openings = openings
        self.methods, self.limits = methods, limits
        #: Budgets, turns and counts that all connections of a broker share.
        self.shared: ConnectionLimits = openings.limits
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self.deadlines = Deadlines()
        self.connections: set[GrpcConnection] = set()
        self._door = Door(
            name="grpc",
            alpn=GRPC,
            make=lambda: GrpcConnection(self),
            answer_plaintext=refuse_grpc,
            has_room=lambda: True,
            opening_ms_max=limits.opening_ms_max,
        )
        #: Accepted sockets that are not connections yet.
        self._accepted: set[asyncio.Task[None]] = set()
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
            if self._connection_count >= self.limits.connections_max:
                self.shared.note("too_many_connections", self.time(), port="grpc")
                accepted.close()
                continue
            opening = self._loop.create_task(self._open(accepted))
            self._accepted.add(opening)
            opening.add_done_callback(self._accepted.discard)

    @property
    def _connection_count(self) -> int:
        return len(self.connections) + len(self._door.opening) + len(self._accepted)

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
        """Make a connection of an accepted socket."""
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: Opening(self._openings, self._door), accepted
            )
        except OSError as error:
            self.shared.note("opening_failed", self.time(), reason=str(error))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

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
        for opening in self._accepted:
            opening.cancel()
        self._door.close()
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
        await asyncio.gather(*self._accepted, return_exceptions=True)
        self.deadlines.close()
        if self._timer is not None:
            self._timer.cancel()
