"""The user's database transaction as a block sees it: the protocol, and adapters for drivers.

The adapters here are for drivers' own connections, which have no hooks, so the block commits.
SQLAlchemy's adapters are in ``sqlalchemy_transactions.py``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from escrowmq.client.database import block
from escrowmq.client.database.asyncpg_connection import AsyncpgConnection
from escrowmq.client.database.block import MAX_DURATION_MS, BlockStage, BlockTerms
from escrowmq.client.database.connections import (
    AioSqliteConnection,
    DriverAdapter,
    SqliteConnection,
    is_a,
)
from escrowmq.client.database.ledger_sql import not_for_async_with, not_for_with
from escrowmq.client.database.open_blocks import BlockClaim
from escrowmq.client.database.psycopg_connections import AsyncPsycopgConnection, PsycopgConnection
from escrowmq.client.database.savepoint_marks import SoonMarks
from escrowmq.client.trampoline import Driven, SyncOrAsync, driven, run_async

if TYPE_CHECKING:
    from escrowmq.client.database.block import Act, BlockRow, DatabaseBlock, Execute, Steps


class TransactionEnding(StrEnum):
    """How a transaction ended if the caller owned the commit."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    #: COMMIT was issued and failed or was interrupted: the ledger row has the outcome.
    UNKNOWN = "unknown"


NothingT = TypeVar("NothingT")
NumbersT_co = TypeVar("NumbersT_co", covariant=True)


class AnyDatabaseTransaction(Protocol[NothingT, NumbersT_co]):
    """A transaction; its methods are sync or async.

    If the block owns the commit, it calls ``begin``, then ``insert_row`` and ``commit``, or
    ``rollback``. If the caller does, the block calls ``begin``, ``on_before_commit`` and
    ``on_ended``; the first callback calls ``insert_row``, and raises to stop the commit.
    """

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block or hook commits; known after ``begin``."""

    def begin(self, now_ms: int) -> NothingT:
        """Begin, and refuse what cannot work: autocommit, savepoints, another database."""

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open: its rollback would not withdraw a message."""

    def mark_soon(self, number: int) -> None:
        """Schedule a message's mark: ``mark`` or an async connection's next statement writes it."""

    def mark(self) -> NothingT:
        """Write the scheduled marks, in the currently open savepoint."""

    def surviving(self) -> NumbersT_co:
        """Return the numbers of the messages whose savepoints were not rolled back."""

    def insert_row(self, now_ms: int) -> NothingT:
        """Write the ledger row as the last statement. If that fails, poison and raise."""

    def commit(self) -> NothingT:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""

    def rollback(self) -> NothingT:
        """Roll back."""

    def poison(self) -> NothingT:
        """Roll back so that no later commit on the same connection or session succeeds."""

    def release(self) -> NothingT:
        """Write no row, because nothing is sent. If the block owns the commit, it still commits."""

    def on_before_commit(self, callback: Callable[[], NothingT]) -> None:
        """Register the callback to call just before the caller's outermost COMMIT."""

    def on_ended(self, callback: Callable[[TransactionEnding], NothingT]) -> None:
        """Register a callback for the end of a caller's transaction; it must not raise."""


DatabaseTransaction: TypeAlias = AnyDatabaseTransaction[None, frozenset[int]]
AsyncDatabaseTransaction: TypeAlias = AnyDatabaseTransaction[
    Coroutine[Any, Any, None], Coroutine[Any, Any, frozenset[int]]
]


class BlockTransaction(Driven):
    """Shared part of the adapters: a block's steps on a connection."""

    _connection: Any
    _block: DatabaseBlock
    _soon: SoonMarks

    def _perform(self, step: Execute | Act) -> SyncOrAsync:
        return block.perform(step, self._connection)

    def _begin(self, connection: object, now_ms: int) -> Steps[None]:
        """Begin the block on the driver's connection."""
        self._soon = SoonMarks(connection, self._block, self._connection.dialect)
        self._claim = BlockClaim(connection, self._block)
        try:
            yield from self._block.begin(now_ms)
        except BaseException:
            self._claim.give_up()
            raise

    def mark_soon(self, number: int) -> None:
        """Schedule a message's mark."""
        self._soon.add(number)

    @driven
    def mark(self) -> Steps[None]:
        """Write the scheduled marks."""
        numbers = self._soon.take()
        if numbers:
            yield from self._block.mark(numbers)

    @driven
    def surviving(self) -> Steps[frozenset[int]]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        return (yield from self._soon.surviving())

    @driven
    def insert_row(self, now_ms: int) -> Steps[None]:
        """Write the ledger row as the last statement."""
        self._soon.end()
        yield from self._block.insert_row(now_ms)

    @driven
    def rollback(self) -> Steps[None]:
        """Roll back."""
        self._soon.take()
        yield from self._block.rollback()
        self._let_go()

    @driven
    def poison(self) -> Steps[None]:
        """Roll back and close the driver's connection."""
        self._soon.take()
        yield from self._block.poison()

    def _let_go(self) -> None:
        """Allow commits that are not the block's."""


class PlainTransaction(BlockTransaction):
    """Transaction on a driver's own connection: without hooks the block commits."""

    is_commit_owned_by_caller = False

    def __init__(self, connection: DriverAdapter, row: BlockRow, max_duration_ms: int) -> None:
        self._connection = connection
        self._block = row.block(
            BlockTerms(connection, has_hooks=False, max_duration_ms=max_duration_ms)
        )
        #: The attributes of the connection, once its commit() is replaced.
        self._shadowed: dict[str, Any] = {}

    def check_outermost(self) -> None:
        """Do nothing: savepoints made by hand are invisible, and COMMIT includes them all."""

    def on_before_commit(self, callback: Callable[[], Any]) -> None:
        """Do nothing: the caller does not commit."""

    def on_ended(self, callback: Callable[[TransactionEnding], Any]) -> None:
        """Do nothing: the caller does not commit."""

    @driven
    def begin(self, now_ms: int) -> Steps[None]:
        """Begin, and refuse what cannot work. Make the connection's commit() raise, if possible."""
        connection = self._connection.connection
        yield from self._begin(connection, now_ms)
        # Drivers have no hook for a commit. sqlite3's own connections cannot be patched: for them,
        # the end of the block detects a foreign commit.
        with suppress(AttributeError):
            connection.commit = self._refuse_commit
            self._shadowed = vars(connection)

    def _let_go(self) -> None:
        self._shadowed.pop("commit", None)

    def _refuse_commit(self) -> SyncOrAsync:
        self._block.refuse_commit()

    @driven
    def commit(self) -> Steps[None]:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        try:
            yield from self._block.commit()
        finally:
            self._let_go()

    @driven
    def release(self) -> Steps[None]:
        """Detach; the transaction stays open."""
        self._soon.take()
        self._block.stage = BlockStage.RELEASED
        self._let_go()
        # No statement is needed, but a generator is: the async form is awaited.
        yield from ()


class AsyncPlainTransaction(PlainTransaction):
    """Transaction on a driver's own async connection."""

    _run = staticmethod(run_async)

    async def _refuse_commit(self) -> None:
        self._block.refuse_commit()


class AsyncpgTransaction(AsyncPlainTransaction):
    """Transaction on an asyncpg connection, which the block begins."""

    async def begin(self, now_ms: int) -> None:
        """Begin; after an error, roll back the transaction if the adapter began it."""
        try:
            await super().begin(now_ms)
        except BaseException:
            with suppress(Exception):
                await self._connection.roll_back_begun()
            raise


def transaction_on(
    database: object, row: BlockRow, *, max_duration_ms: int = MAX_DURATION_MS
) -> DatabaseTransaction:
    """Return the adapter for a sync session or connection."""
    if _is_of("sqlalchemy", database):
        from escrowmq.client.database import sqlalchemy_transactions

        return sqlalchemy_transactions.transaction_on(database, row, max_duration_ms)
    if isinstance(database, sqlite3.Connection):
        return PlainTransaction(SqliteConnection(database), row, max_duration_ms)
    if is_a("psycopg", "Connection", database):
        return PlainTransaction(PsycopgConnection(database), row, max_duration_ms)
    raise not_for_with(database)


def async_transaction_on(
    database: object, row: BlockRow, *, max_duration_ms: int = MAX_DURATION_MS
) -> AsyncDatabaseTransaction:
    """Return the adapter for an async session or connection."""
    if _is_of("sqlalchemy", database):
        from escrowmq.client.database import async_sqlalchemy_transactions

        return async_sqlalchemy_transactions.async_transaction_on(database, row, max_duration_ms)
    if is_a("aiosqlite", "Connection", database):
        return AsyncPlainTransaction(AioSqliteConnection(database), row, max_duration_ms)
    if is_a("psycopg", "AsyncConnection", database):
        return AsyncPlainTransaction(AsyncPsycopgConnection(database), row, max_duration_ms)
    if is_a("asyncpg", "Connection", database) or is_a(
        "asyncpg.pool", "PoolConnectionProxy", database
    ):
        return AsyncpgTransaction(AsyncpgConnection(database), row, max_duration_ms)
    raise not_for_async_with(database)


def _is_of(package: str, thing: object) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(thing).__mro__)
