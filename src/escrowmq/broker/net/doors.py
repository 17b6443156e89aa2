"""The ports for remoting and HTTP, at which asyncio's servers accept."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from escrowmq.broker.net import http, tls
from escrowmq.broker.net.listening import bound_socket, close_servers
from escrowmq.broker.net.opening import Door
from escrowmq.broker.net.plaintext_refusals import refuse_http, refuse_remoting

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from escrowmq.broker.net.connection import ClientConnection
    from escrowmq.broker.net.http import HttpConnections
    from escrowmq.broker.net.opening import Openings

BACKLOG = 4_096


async def hang_up(
    connections: set[ClientConnection], all_gone: asyncio.Event, s_max: float
) -> None:
    """Close these connections after their last answers; cut peers that do not read these."""
    for connection in list(connections):
        connection.flush()
        connection.close()
    if connections:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(all_gone.wait(), s_max)
    for connection in list(connections):
        connection.cut("stopping")


class Doors:
    """Accepts connections of remoting, on both of its ports, and of HTTP."""

    def __init__(
        self,
        openings: Openings,
        remoting: Callable[[], asyncio.Protocol],
        pages: HttpConnections,
        has_room: Callable[[], bool],
    ) -> None:
        self._openings = openings
        self._pages = pages
        self._remoting = Door(
            name="remoting",
            alpn=tls.REMOTING,
            make=remoting,
            answer_plaintext=refuse_remoting,
            has_room=has_room,
            may_be_silent=True,
        )
        self._http = Door(
            name="http",
            alpn=tls.HTTP,
            make=pages,
            answer_plaintext=refuse_http,
            has_room=lambda: len(pages.open) + len(self._http.opening) < http.CONNECTIONS_MAX,
        )
        self._servers: list[asyncio.Server] = []

    @property
    def opening_count(self) -> int:
        """Connections of remoting whose protocol has not begun."""
        return len(self._remoting.opening)

    async def open_http(self, host: str, port: int) -> int:
        """Accept clients of HTTP; return the port."""
        bound = bound_socket(host, port)
        factory = self._openings.factory(self._http)
        self._servers.append(await asyncio.get_running_loop().create_server(factory, sock=bound))
        found: int = bound.getsockname()[1]
        return found

    async def open_remoting(self, sockets: Iterable[socket.socket]) -> None:
        """Accept clients of remoting."""
        loop, factory = asyncio.get_running_loop(), self._openings.factory(self._remoting)
        for bound in sockets:
            server = await loop.create_server(factory, sock=bound, backlog=BACKLOG)
            self._servers.append(server)

    async def close_soon(self) -> None:
        """Accept no more clients, and serve no more pages."""
        await close_servers(self._servers)
        self._http.close()
        self._pages.close()

    def cut_opening(self) -> None:
        """Cut connections whose protocol has not begun."""
        self._remoting.close()
