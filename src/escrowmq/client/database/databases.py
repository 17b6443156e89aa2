"""Connections for the ledger's own short transactions, from a URL, an engine or a factory.

Back-checks, the janitor and table creation use them; the row itself is written on the user's
connection (``database/transactions.py``). A missing SQLite file is created only on request.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from escrowmq.client.database.asyncpg_connection import opened_connection
from escrowmq.client.database.connections import (
    DatabaseConnection,
    SqlAlchemyConnection,
    SqliteConnection,
    is_a,
)
from escrowmq.client.database.errors import CommitRefused
from escrowmq.client.database.ledger_sql import SQLITE, dialect_of, unsupported
from escrowmq.client.database.open_blocks import is_in_block
from escrowmq.client.database.psycopg_connections import PsycopgConnection
from escrowmq.model.cut_off import cutting_off
from escrowmq.model.errors import RequestRefused, Unavailable

if TYPE_CHECKING:
    import sqlalchemy

LOCK_WAIT_MS = 100
CONNECT_TIMEOUT_S = 5
#: Maximum duration of one statement of ours, besides its wait for locks.
STATEMENT_MS_MAX = 10_000

Opener = Callable[[], AbstractContextManager[DatabaseConnection]]
"""Returns a connection that is open for the duration of the ``with`` block."""


def opener_of(
    database: Any,  # noqa: ANN401 -- whatever a user gives
    *,
    may_make_file: bool = False,
) -> Opener:
    """Return how to open connections from a URL, a SQLAlchemy engine, or a factory function."""
    if isinstance(database, str):
        return _from_url(database, may_make_file=may_make_file)
    if is_a("sqlalchemy", "Engine", database):
        return _from_engine(database, may_make_file=may_make_file)
    # A sqlite3 connection is callable but does not open connections.
    if callable(database) and not isinstance(database, sqlite3.Connection):
        return lambda: _made_connection(database)
    raise RequestRefused(
        "database_unsupported",
        "a ledger takes a URL, a SQLAlchemy engine, or a function that opens a connection",
        kind=type(database).__name__,
    )


def is_async_engine(database: object) -> bool:
    """Whether this is SQLAlchemy's async engine."""
    return is_a("sqlalchemy.ext.asyncio", "AsyncEngine", database)


def _from_url(url: str, *, may_make_file: bool) -> Opener:
    scheme, _, rest = url.partition("://")
    name, _, driver = scheme.partition("+")
    name = "postgresql" if name == "postgres" else name
    dialect_of(name)
    if name == SQLITE.name:
        # SQLAlchemy's URL form: three slashes for a relative path, four for an absolute one.
        path = unquote(rest.removeprefix("/").partition("?")[0])
        if path in {"", ":memory:"}:
            raise RequestRefused(
                "database_unsupported",
                "each connection to :memory: has a database of its own: use a file",
                kind=":memory:",
            )
        return lambda: _made_connection(lambda: _open_file(path, "rwc" if may_make_file else "rw"))
    if driver in {"", "psycopg"}:
        return lambda: _made_connection(lambda: _connect(f"postgresql://{rest}"))
    if driver == "asyncpg":
        if rest.partition("?")[0].count("@") > 1:
            raise _bad_url()
        return lambda: opened_connection(f"postgresql://{rest}", CONNECT_TIMEOUT_S)
    try:
        import sqlalchemy

        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    except ImportError as error:
        raise RequestRefused(
            "driver_missing",
            "install what the URL names, or write postgresql:// for psycopg 3",
            cause=str(error),
        ) from error
    return _from_engine(engine, may_make_file=may_make_file)


def _from_engine(engine: sqlalchemy.Engine, *, may_make_file: bool) -> Opener:
    dialect_of(engine.dialect.name)
    import sqlalchemy

    # SingletonThreadPool gives each thread one connection, shared with the user's sessions.
    if isinstance(engine.pool, sqlalchemy.StaticPool | sqlalchemy.SingletonThreadPool):
        raise _shared(type(engine.pool).__name__)

    @contextmanager
    def opened() -> Iterator[DatabaseConnection]:
        if not may_make_file:
            _check_file(engine)
        with engine.connect() as connection:
            _check_free(connection.connection.driver_connection)
            yield _prepared(connection)

    return opened


def _open_file(path: str, mode: str) -> sqlite3.Connection:
    # With mode=rw, a missing file is an error instead of an empty database.
    return sqlite3.connect(
        f"file:{quote(path)}?mode={mode}",
        uri=True,
        timeout=LOCK_WAIT_MS / 1000,
        isolation_level=None,
    )


def _connect(url: str) -> Any:  # noqa: ANN401 -- psycopg.Connection, without importing it above
    try:
        import psycopg
    except ImportError as error:
        raise RequestRefused(
            "driver_missing",
            'PostgreSQL needs psycopg 3: pip install "escrowmq[postgres]"',
            cause=str(error),
        ) from error
    try:
        stated = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _bad_url() from None
    port = str(stated.get("port") or "0").replace(",", "")
    if url.partition("?")[0].count("@") > 1 or not port.isdecimal():
        # Otherwise a part of the password would be read as host or port, and shown in an error.
        raise _bad_url()
    if "connect_timeout" in stated:
        return psycopg.connect(url)
    return psycopg.connect(url, connect_timeout=CONNECT_TIMEOUT_S)


def _bad_url() -> RequestRefused:
    # The error repeats nothing of the URL, because the bad part may be the password.
    return RequestRefused("bad_ledger_url", "quote what is special in a URL: %40 for @ and so on")


@contextmanager
def _made_connection(make: Callable[[], Any]) -> Iterator[DatabaseConnection]:
    connection = make()
    _check_free(connection)
    adapted = _adapted(connection)
    try:
        yield adapted
    finally:
        connection.close()


def _adapted(connection: Any) -> DatabaseConnection:  # noqa: ANN401 -- the user's factory may return anything
    """Adapt a sqlite3 or psycopg connection that we own until it is closed."""
    if isinstance(connection, sqlite3.Connection):
        return SqliteConnection(connection)
    if is_a("psycopg", "Connection", connection):
        connection.autocommit = False
        return PsycopgConnection(connection)
    raise unsupported(type(connection).__name__)


def _prepared(connection: sqlalchemy.Connection) -> DatabaseConnection:
    """Adapt a connection of the user's engine, which may have other settings than ours."""
    dialect = dialect_of(connection.dialect.name)
    if dialect is not SQLITE:
        # This also overrides an engine's AUTOCOMMIT; the pool resets it.
        connection = connection.execution_options(isolation_level="READ COMMITTED")
    return SqlAlchemyConnection(connection)


def _check_free(connection: object) -> None:
    """Refuse a connection that is in a block, because our transaction would commit the block's."""
    if is_in_block(connection):
        raise _shared(type(connection).__name__)


def _shared(kind: str) -> RequestRefused:
    return RequestRefused(
        "pool_shares_connection",
        "the ledger's own transactions would commit yours: use QueuePool or NullPool, and a file"
        " in place of :memory:",
        kind=kind,
    )


def _check_file(engine: sqlalchemy.Engine) -> None:
    """Refuse to connect where SQLite would create an empty file."""
    path = engine.url.database
    is_file = engine.dialect.name == SQLITE.name and path not in {None, "", ":memory:"}
    if is_file and not str(path).startswith("file:") and not Path(str(path)).exists():
        raise Unavailable("ledger_unreachable", "there is no such file", path=path)


@contextmanager
def cutting(connection: DatabaseConnection, until_s: float) -> Iterator[None]:
    """Break the connection if the block runs past the deadline, so the waiting call gets an error.

    The database's own timeouts work only while it is reachable. `until_s` is monotonic time.
    """
    with cutting_off(max(until_s - time.monotonic(), 0), connection.cut) as timer:
        try:
            yield
        finally:
            timer.cancel()
            # Otherwise a late timer could break the connection for its next user.
            timer.join()


def reading(
    connection: DatabaseConnection, lock_wait_ms: int = LOCK_WAIT_MS
) -> AbstractContextManager[None]:
    """Run the ``with`` block as one short transaction of ours that only reads."""
    return _transaction(connection, connection.dialect.begin_read, lock_wait_ms)


def writing(
    connection: DatabaseConnection, lock_wait_ms: int = LOCK_WAIT_MS
) -> AbstractContextManager[None]:
    """Run the ``with`` block as one transaction of ours; commit, or roll back on any error."""
    return _transaction(connection, connection.dialect.begin_write, lock_wait_ms)


@contextmanager
def _transaction(connection: DatabaseConnection, begin: str, lock_wait_ms: int) -> Iterator[None]:
    is_sqlite = connection.dialect is SQLITE
    with _bounded_wait(connection, lock_wait_ms):
        try:
            # Some engines for SQLite are configured to begin by themselves.
            if not (is_sqlite and connection.is_in_transaction):
                connection.execute(begin)
            if not is_sqlite:
                statement_ms = lock_wait_ms + STATEMENT_MS_MAX
                limits = connection.dialect.limits
                connection.execute(limits.format(lock_ms=lock_wait_ms, statement_ms=statement_ms))
            _check_transaction(connection)
            yield
            connection.commit()
        except CommitRefused as refused:
            connection.rollback()
            raise refused.error from None
        except BaseException:
            connection.rollback()
            raise


def _check_transaction(connection: DatabaseConnection) -> None:
    if connection.is_autocommit:
        raise RequestRefused(
            "autocommit_connection", "each statement commits by itself: turn autocommit off"
        )


@contextmanager
def _bounded_wait(connection: DatabaseConnection, lock_wait_ms: int) -> Iterator[None]:
    """Set SQLite's lock wait, and restore it after: the connection may belong to a pool."""
    if connection.dialect is not SQLITE:
        yield
        return
    before = connection.execute("PRAGMA busy_timeout").rows[0][0]
    connection.execute(SQLITE.limits.format(lock_ms=lock_wait_ms))
    try:
        yield
    finally:
        connection.execute(SQLITE.limits.format(lock_ms=before))
