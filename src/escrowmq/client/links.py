"""Links: one interface to a database connection of any driver.

A link neither opens connections nor decides anything. Drivers are imported where they are used:
importing this module imports none.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from escrowmq.client.database_errors import CommitRefused, is_commit_refused
from escrowmq.client.ledger_sql import SQLITE, Dialect, dialect_of

if TYPE_CHECKING:
    import sqlite3

    import aiosqlite
    import sqlalchemy
    from sqlalchemy.orm import Session

Row = tuple[Any, ...]


class Result(NamedTuple):
    """Result of a statement."""

    rows: Sequence[Row]
    row_count: int


class LinkFacts(Protocol):
    """Properties of a connection that need no query."""

    @property
    def dialect(self) -> Dialect:
        """The SQL of the database."""
        ...

    @property
    def is_autocommit(self) -> bool:
        """Whether each statement would commit by itself."""
        ...

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        ...

    @property
    def is_in_callers_block(self) -> bool:
        """Whether the caller is in a driver's own block, which will commit and has no hook."""
        ...


class Link(LinkFacts, Protocol):
    """A sync connection."""

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        ...

    def commit(self) -> None:
        """Commit, or raise; CommitRefused if certainly nothing was committed."""
        ...

    def rollback(self) -> None:
        """Roll back."""
        ...

    def close(self) -> None:
        """Roll back and make the connection unusable: nothing can commit on it any more."""
        ...

    def cut(self) -> None:
        """Interrupt the running call from another thread, where the driver supports it."""
        ...


class AsyncLink(LinkFacts, Protocol):
    """An async connection."""

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        ...

    async def commit(self) -> None:
        """Commit, or raise; CommitRefused if certainly nothing was committed."""
        ...

    async def rollback(self) -> None:
        """Roll back."""
        ...

    async def close(self) -> None:
        """Roll back and make the connection unusable: nothing can commit on it any more."""
        ...


class _SqliteFacts:
    dialect = SQLITE
    is_in_callers_block = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- sqlite3's, aiosqlite's or similar
        self._facts = connection

    @property
    def is_autocommit(self) -> bool:
        # Python 3.12 and newer: with autocommit=True, commit() does nothing even after a BEGIN.
        if getattr(self._facts, "autocommit", None) is True:
            return True
        return self._facts.isolation_level is None and not self.is_in_transaction

    @property
    def is_in_transaction(self) -> bool:
        return bool(self._facts.in_transaction)


class SqliteLink(_SqliteFacts):
    """A connection of Python's sqlite3."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.connection = connection

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

    def commit(self) -> None:
        """Commit. SQLite keeps the transaction open after a refused COMMIT, so roll it back."""
        try:
            type(self.connection).commit(self.connection)
        except Exception as error:
            if not is_commit_refused(error, is_still_open=self.is_in_transaction):
                raise
            self.connection.rollback()
            raise CommitRefused(error) from error

    def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    def close(self) -> None:
        """Roll back and close."""
        try:
            self.connection.rollback()
        finally:
            self.connection.close()

    def cut(self) -> None:
        """Interrupt the running statement."""
        cut(self.connection)


class AioSqliteLink(_SqliteFacts):
    """A connection of aiosqlite."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        super().__init__(connection)
        self.connection = connection

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        async with self.connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(sql, parameters)
            return Result([tuple(row) for row in await cursor.fetchall()], cursor.rowcount)

    async def commit(self) -> None:
        """Commit. SQLite keeps the transaction open after a refused COMMIT, so roll it back."""
        try:
            await type(self.connection).commit(self.connection)
        except Exception as error:
            if not is_commit_refused(error, is_still_open=self.is_in_transaction):
                raise
            await self.connection.rollback()
            raise CommitRefused(error) from error

    async def rollback(self) -> None:
        """Roll back."""
        await self.connection.rollback()

    async def close(self) -> None:
        """Roll back and close."""
        try:
            await self.connection.rollback()
        finally:
            await self.connection.close()


class SqlAlchemyLink:
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
            return _SqliteFacts(pooled.driver_connection).is_autocommit
        return bool(getattr(pooled.dbapi_connection, "autocommit", False))

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun: in the database for SQLite, else in SQLAlchemy."""
        if self.dialect is SQLITE:
            driver: Any = self.connection.connection.driver_connection
            return bool(driver.in_transaction)
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


class SessionLink(SqlAlchemyLink):
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


def cut(connection: object) -> None:
    """Interrupt the call that another thread has on a driver's connection, if it is known."""
    sqlite3, psycopg = sys.modules.get("sqlite3"), sys.modules.get("psycopg")
    asyncpg = sys.modules.get("asyncpg")
    if sqlite3 is not None and isinstance(connection, sqlite3.Connection):
        connection.interrupt()
    # close() and a cancel query would both wait for the running call, so shut the socket down.
    if psycopg is not None and isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        with suppress(OSError, psycopg.Error):
            _shut_down(connection.fileno())
    if asyncpg is not None and isinstance(connection, asyncpg.Connection):
        # The transport of a closed connection has no socket.
        with suppress(OSError, AttributeError):
            _shut_down(connection._transport.get_extra_info("socket").fileno())  # noqa: SLF001


def _shut_down(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def shadow_commit(
    connection: object, refuse: Callable[[], Awaitable[None] | None]
) -> Callable[[], None]:
    """Replace the connection's commit() by ``refuse``; return a function that restores it.

    Drivers have no hook for a commit. sqlite3's own connections cannot be patched: for them, the
    end of the block detects a foreign commit.
    """
    try:
        connection.commit = refuse  # type: ignore[attr-defined]
    except AttributeError:
        return lambda: None
    return lambda: vars(connection).pop("commit", None)
