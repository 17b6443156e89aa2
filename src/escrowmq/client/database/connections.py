"""Adapters: one interface to a database connection of any driver.

An adapter neither opens connections nor decides anything. Drivers are imported where they are used:
importing this module imports none.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from escrowmq.client.database.errors import CommitRefused, is_commit_refused
from escrowmq.client.database.ledger_sql import SQLITE, Dialect, dialect_of
from escrowmq.client.trampoline import Calls, Driven, SyncOrAsync, driven, run_async

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite
    import sqlalchemy
    from sqlalchemy.orm import Session

ResultRow = tuple[Any, ...]


class Result(NamedTuple):
    """Result of a statement."""

    rows: Sequence[ResultRow]
    row_count: int


class ConnectionFacts(Protocol):
    """Properties of a connection that need no query."""

    @property
    def dialect(self) -> Dialect:
        """The SQL of the database."""

    @property
    def is_autocommit(self) -> bool:
        """Whether each statement would commit by itself."""

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""

    @property
    def is_in_callers_block(self) -> bool:
        """Whether the caller is in the driver's own block, which commits without calling us."""


class DatabaseConnection(ConnectionFacts, Protocol):
    """A sync connection. An async one has the same methods, except ``cut``, as coroutines."""

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""

    def commit(self) -> None:
        """Commit, or raise; CommitRefused if certainly nothing was committed."""

    def rollback(self) -> None:
        """Roll back."""

    def close(self) -> None:
        """Roll back and make the connection unusable: nothing can commit on it any more."""

    def cut(self) -> None:
        """Interrupt the running call from another thread, where the driver supports it."""


class DriverAdapter(Driven, ConnectionFacts):
    """Shared part of the adapters of a driver's connection, sync or async."""

    dialect: Dialect

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- a connection of any driver
        self.connection = connection

    @driven
    def commit(self) -> Calls[None]:
        """Commit, or raise; CommitRefused if certainly nothing was committed."""
        yield from self._checked_commit()

    def _checked_commit(self) -> Calls[None]:
        try:
            yield from self._commit()
        except Exception as error:
            # SQLite keeps the transaction open after a refused COMMIT, so roll it back.
            is_still_open = self.dialect is SQLITE and self.is_in_transaction
            if not is_commit_refused(error, is_still_open=is_still_open):
                raise
            if is_still_open:
                yield self.connection.rollback
            raise CommitRefused(error) from error

    def _commit(self) -> Calls[None]:
        yield partial(type(self.connection).commit, self.connection)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        return bool(self.connection.in_transaction)

    def rollback(self) -> SyncOrAsync:
        """Roll back."""
        return self.connection.rollback()

    @driven
    def close(self) -> Calls[None]:
        """Roll back and close."""
        try:
            yield self.connection.rollback
        finally:
            yield self.connection.close

    def cut(self) -> None:
        """Break the connection, or interrupt its running statement."""
        cut(self.connection)


class _SqliteAdapter(DriverAdapter):
    dialect = SQLITE
    is_in_callers_block = False

    @property
    def is_autocommit(self) -> bool:
        """Whether each statement would commit by itself."""
        # Python 3.12 and newer: with autocommit=True, commit() does nothing even after a BEGIN.
        if getattr(self.connection, "autocommit", None) is True:
            return True
        return self.connection.isolation_level is None and not self.is_in_transaction


class SqliteConnection(_SqliteAdapter):
    """A connection of Python's sqlite3."""

    connection: sqlite3.Connection

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        cursor = self.connection.cursor()
        # A row_factory that the user set must not change what we read.
        cursor.row_factory = None
        try:
            cursor.execute(sql, parameters)
            return Result(cursor.fetchall(), cursor.rowcount)
        finally:
            cursor.close()


class AioSqliteConnection(_SqliteAdapter):
    """A connection of aiosqlite."""

    _run = staticmethod(run_async)
    connection: aiosqlite.Connection

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(sql, parameters)
            return Result([tuple(row) for row in await cursor.fetchall()], cursor.rowcount)


class SqlAlchemyConnection:
    """A SQLAlchemy connection, over any of its drivers."""

    is_in_callers_block = False

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self.connection = connection
        self.dialect = dialect_of(connection.dialect.name)

    @property
    def is_autocommit(self) -> bool:
        """Whether each statement would commit by itself, according to the driver."""
        pooled = self.connection.connection
        if self.dialect is SQLITE:
            return _SqliteAdapter(pooled.driver_connection).is_autocommit
        return bool(getattr(pooled.dbapi_connection, "autocommit", False))

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun: in the database for SQLite, else in SQLAlchemy."""
        if self.dialect is SQLITE:
            return _SqliteAdapter(self.connection.connection.driver_connection).is_in_transaction
        return self.connection.in_transaction()

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        values = {f"p{number}": value for number, value in enumerate(parameters)}
        with self.connection.execute(_text(sql), values) as result:
            rows = [tuple(row) for row in result] if result.returns_rows else []
            return Result(rows, result.rowcount)

    def commit(self) -> None:
        """Commit. A hook on SQLAlchemy's commit event checks the driver's response."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    def close(self) -> None:
        """Roll back below SQLAlchemy and discard the driver's connection.

        SQLAlchemy then refuses everything but a rollback.
        """
        if self.connection.closed or self.connection.invalidated:
            return
        try:
            self.connection.connection.rollback()
        finally:
            self.connection.invalidate()

    def cut(self) -> None:
        """Break the driver's connection, or interrupt its running statement."""
        cut(self.connection.connection.driver_connection)


class SessionConnection(SqlAlchemyConnection):
    """A session's connection; the session itself commits, so that it updates its objects."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.connection())
        self._session = session

    def commit(self) -> None:
        """Commit through the session."""
        self._session.commit()

    def rollback(self) -> None:
        """Roll back."""
        self._session.rollback()


@lru_cache(maxsize=256)
def _text(sql: str) -> sqlalchemy.TextClause:
    import sqlalchemy

    first, *rest = sql.split("?")
    return sqlalchemy.text(first + "".join(f":p{number}{part}" for number, part in enumerate(rest)))


def is_a(package: str, name: str, thing: object) -> bool:
    """Whether the thing is of a package's class, without importing the package."""
    # If the thing exists, its package is already imported.
    loaded = sys.modules.get(package)
    return loaded is not None and isinstance(thing, getattr(loaded, name))


def cut(connection: Any) -> None:  # noqa: ANN401 -- a connection of any driver
    """Interrupt the call that another thread is in; do nothing for an unknown driver."""
    if is_a("sqlite3", "Connection", connection):
        connection.interrupt()
    # close() and a cancel query would both wait for the running call, so shut the socket down.
    for kind in ("Connection", "AsyncConnection"):
        if is_a("psycopg", kind, connection):
            with suppress(OSError, sys.modules["psycopg"].Error):
                _shut_down(connection.fileno())
    if is_a("asyncpg", "Connection", connection):
        # The transport of a closed connection has no socket.
        with suppress(OSError, AttributeError):
            _shut_down(connection._transport.get_extra_info("socket").fileno())  # noqa: SLF001


def _shut_down(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as wire:
        wire.shutdown(socket.SHUT_RDWR)
