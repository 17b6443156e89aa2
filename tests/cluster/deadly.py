"""A proxy in front of a broker that kills a host in the middle of its work.

It replaces no part of the pipeline. When a task of a host sends a request of a certain kind, the
proxy kills the whole host. The broker still gets the request, but no task is left to read the
answer.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from escrowmq.protocol.native.requests import NativeCode
from tests.cluster.cluster import HOSTS, Cluster
from tests.spark.sessions import holds_port
from tests.unit.pipeline.losing import LosingProxy


class DeadlyWay(LosingProxy):
    """Kills the first host whose tasks send the nth request of a kind. Use it in ``with``."""

    def __init__(
        self, broker_address: str, cluster: Cluster, fatal: NativeCode, *, nth: int = 1
    ) -> None:
        super().__init__(broker_address, lambda *_: False)
        self._cluster = cluster
        self._fatal = fatal
        self._asked = dict.fromkeys(HOSTS, 0)
        self._nth = nth
        self._turn = threading.Lock()
        #: The host that died.
        self.victim: str | None = None

    def _relay(self, caller: socket.socket) -> None:
        # A dying host breaks more than one connection.
        with suppress(OSError):
            super()._relay(caller)

    def _is_lost(self, caller: socket.socket, code: NativeCode) -> bool:
        if code is not self._fatal:
            return False
        with self._turn:
            host = None if self.victim else self._host_of(caller)
            if host is None:
                return False
            self._asked[host] += 1
            if self._asked[host] < self._nth:
                return False
            self.victim = host
            self._cluster.kill_host(host)
            return True

    def _host_of(self, caller: socket.socket) -> str | None:
        """Return the caller's host, or None if the caller is the driver."""
        port = caller.getpeername()[1]
        for host in HOSTS:
            if self._cluster.is_alive(host) and holds_port(self._cluster.session(host), port):
                return host
        return None
