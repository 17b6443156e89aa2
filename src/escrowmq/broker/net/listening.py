"""Listening sockets of a broker, the address that it tells clients, and its open-files limit."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.ids import format_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.broker.config import BrokerConfig

ACCEPT_TURNS = 4
"""Turns of the event loop in which accepted sockets become connections."""


def open_files_max() -> int:
    """Raise the limit of open files as far as the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to this address; port 0 means any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise RequestRefused(
            "address_unusable",
            "stop the process that listens there, or choose another host or port",
            host=host,
            port=port,
            reason=error.strerror,
        ) from None
    return bound


def local_address(bound: socket.socket) -> str:
    """Return the address at which this machine reaches the socket, even if it listens on all."""
    host, port = bound.getsockname()[:2]
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return format_address(host, port)


def address_to_tell(config: BrokerConfig) -> str:
    """Return the address for clients: an IP address, because stored messages hold it."""
    host = config.advertise_host or config.host
    try:
        ip = ip_address(host)
    except ValueError:
        raise RequestRefused(
            "host_illegal", "name an IP address, not a host name", address=host
        ) from None
    if ip.is_unspecified:
        raise RequestRefused(
            "host_illegal", "clients cannot connect to it; set broker.advertise_host", address=host
        )
    return host


async def close_servers(servers: Sequence[asyncio.Server]) -> None:
    """Accept no more connections.

    When a server is closed, asyncio does not close a socket that it has accepted but not yet
    handed over. So stop accepting first, and close the server some turns of the loop later.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listening in (one for server in servers for one in server.sockets):
            loop.remove_reader(listening)
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()
