"""The user's database transaction, as the producer's block sees it: a port and its plain adapters.

The adapters here are for drivers' own connections, which have no hooks: the block commits.
SQLAlchemy's are in ``sqlalchemy_transactions.py``.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Protocol

from escrowmq.client.asyncpg_link import AsyncpgLink
from escrowmq.client.database_block import MAX_DURATION_MS, Block, Row, Stage, run, run_async
from escrowmq.client.ledger_sql import not_for_async_with, not_for_with
from escrowmq.client.links import AioSqliteLink, AsyncLink, Link, SqliteLink, shadow_commit
from escrowmq.client.open_blocks import Claim
from escrowmq.client.psycopg_links import AsyncPsycopgLink, PsycopgLink
from escrowmq.client.savepoint_marks import SoonMarks


class Ending(StrEnum):
    """How a transaction ended whose commit was the caller's."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    #: COMMIT was issued and failed or was interrupted: the ledger's row will tell.
    UNKNOWN = "unknown"


class DatabaseTransaction(Protocol):
    """A transaction that is waited for.

    Either the block owns the commit: ``begin``, then ``insert_row`` and ``commit``, or
    ``rollback``.  Or the caller does: ``begin``, then ``on_before_commit`` and ``on_ended``; the
    first calls ``insert_row``, and raises to stop the commit.
    """

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block or hook commits; known once it has begun."""
        ...

    def begin(self, now_ms: int) -> None:
        """Refuse at once what cannot work: autocommit, savepoints, another database."""
        ...

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open: its rollback would not take a message back."""
        ...

    def mark(self, numbers: Sequence[int]) -> None:
        """Mark messages in the savepoint that is open now."""
        ...

    def surviving(self) -> frozenset[int]:
        """Find the messages whose savepoints were not rolled back."""
        ...

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger's row as the last statement.  If that fails, poison and raise."""
        ...

    def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        ...

    def rollback(self) -> None:
        """Roll back."""
        ...

    def poison(self) -> None:
        """Roll back so that no later commit on the same connection or session succeeds."""
        ...

    def release(self) -> None:
        """Take our hands off: nothing is sent.  A commit that is ours is still to be made."""
        ...

    def on_before_commit(self, callback: Callable[[], None]) -> None:
        """Call when the caller is about to commit, at the outermost level."""
        ...

    def on_ended(self, callback: Callable[[Ending], None]) -> None:
        """Call once when the transaction has ended; it must not raise."""
        ...


class AsyncDatabaseTransaction(Protocol):
    """A transaction that is awaited; otherwise as DatabaseTransaction."""

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block or hook commits; known once it has begun."""
        ...

    async def begin(self, now_ms: int) -> None:
        """Refuse at once what cannot work."""
        ...

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open."""
        ...

    def mark_soon(self, number: int) -> None:
        """Mark a message before the next statement."""
        ...

    async def mark(self) -> None:
        """Write the marks that were not written yet."""
        ...

    async def surviving(self) -> frozenset[int]:
        """Find the messages whose savepoints were not rolled back."""
        ...

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger's row as the last statement."""
        ...

    async def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        ...

    async def rollback(self) -> None:
        """Roll back."""
        ...

    async def poison(self) -> None:
        """Roll back so that no later commit succeeds."""
        ...

    async def release(self) -> None:
        """Take our hands off."""
        ...

    def on_before_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await when the caller is about to commit."""
        ...

    def on_ended(self, callback: Callable[[Ending], Awaitable[None]]) -> None:
        """Await once when the transaction has ended."""
        ...


class _Plain:
    """What both kinds share: no hooks, so the block commits and nothing is called back."""

    is_commit_owned_by_caller = False

    def check_outermost(self) -> None:
        """Do nothing: savepoints made by hand cannot be seen, and COMMIT takes them all."""

    def on_before_commit(self, callback: Callable[[], Any]) -> None:
        """Do nothing: there is no caller's commit."""

    def on_ended(self, callback: Callable[[Ending], Any]) -> None:
        """Do nothing, as above."""


class PlainTransaction(_Plain):
    """On a driver's own connection."""

    def __init__(self, link: Link, connection: object, block: Block) -> None:
        self._link = link
        self._connection = connection
        self._block = block
        self._unshadow: Callable[[], None] = lambda: None

    def begin(self, now_ms: int) -> None:
        """Refuse at once what cannot work; from here on, the connection's commit() refuses too."""
        self._claim = Claim(self._connection, self._block)
        try:
            run(self._block.begin(now_ms), self._link)
        except BaseException:
            self._claim.give_up()
            raise
        self._unshadow = shadow_commit(self._connection, self._block.refuse_commit)

    def mark(self, numbers: Sequence[int]) -> None:
        """Mark messages in the savepoint that is open now."""
        run(self._block.mark(numbers), self._link)

    def surviving(self) -> frozenset[int]:
        """Find the messages whose savepoints were not rolled back."""
        return run(self._block.look_for_marks(), self._link)

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger's row as the last statement."""
        run(self._block.insert_row(now_ms), self._link)

    def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        try:
            run(self._block.commit(), self._link)
        finally:
            self._unshadow()

    def rollback(self) -> None:
        """Roll back."""
        run(self._block.rollback(), self._link)
        self._unshadow()

    def poison(self) -> None:
        """Roll back and close the connection."""
        run(self._block.poison(), self._link)

    def release(self) -> None:
        """Take our hands off; the transaction stays open."""
        self._block.stage = Stage.RELEASED
        self._unshadow()


class AsyncPlainTransaction(_Plain):
    """On a driver's own connection that is awaited."""

    def __init__(self, link: AsyncLink, connection: object, block: Block) -> None:
        self._link = link
        self._connection = connection
        self._block = block
        self._soon = SoonMarks(connection, block, link.dialect)
        self._unshadow: Callable[[], None] = lambda: None

    async def begin(self, now_ms: int) -> None:
        """Refuse at once what cannot work; from here on, the connection's commit() refuses too."""
        self._claim = Claim(self._connection, self._block)
        try:
            await run_async(self._block.begin(now_ms), self._link)
        except BaseException:
            self._claim.give_up()
            raise
        self._unshadow = shadow_commit(self._connection, self._refuse)

    async def _refuse(self) -> None:
        self._block.refuse_commit()

    def mark_soon(self, number: int) -> None:
        """Mark a message before the next statement."""
        self._soon.add(number)

    async def mark(self) -> None:
        """Write the marks that were not written yet."""
        numbers = self._soon.take()
        if numbers:
            await run_async(self._block.mark(numbers), self._link)

    async def surviving(self) -> frozenset[int]:
        """Find the messages whose savepoints were not rolled back."""
        return await self._soon.surviving(
            lambda: run_async(self._block.look_for_marks(), self._link)
        )

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger's row as the last statement."""
        self._soon.end()
        await run_async(self._block.insert_row(now_ms), self._link)

    async def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        try:
            await run_async(self._block.commit(), self._link)
        finally:
            self._unshadow()

    async def rollback(self) -> None:
        """Roll back."""
        self._soon.take()
        await run_async(self._block.rollback(), self._link)
        self._unshadow()

    async def poison(self) -> None:
        """Roll back and close the connection."""
        self._soon.take()
        await run_async(self._block.poison(), self._link)

    async def release(self) -> None:
        """Take our hands off; the transaction stays open."""
        self._soon.take()
        self._block.stage = Stage.RELEASED
        self._unshadow()


class AsyncpgTransaction(AsyncPlainTransaction):
    """On a connection of asyncpg, whose transaction the block begins."""

    _link: AsyncpgLink

    async def begin(self, now_ms: int) -> None:
        """Begin; what is refused leaves the connection as it was."""
        try:
            await super().begin(now_ms)
        except BaseException:
            with suppress(Exception):
                await self._link.end_own()
            raise


def transaction_on(
    database: Any,  # noqa: ANN401 -- whatever the user works with
    row: Row,
    *,
    max_duration_ms: int = MAX_DURATION_MS,
) -> DatabaseTransaction:
    """Find the adapter for a session or connection that is waited for."""
    if _is_of("sqlalchemy", database):
        from escrowmq.client import sqlalchemy_transactions

        return sqlalchemy_transactions.transaction_on(database, row, max_duration_ms)
    link: Link
    if isinstance(database, sqlite3.Connection):
        link = SqliteLink(database)
    elif _is_a("psycopg", "Connection", database):
        link = PsycopgLink(database)
    else:
        raise not_for_with(database)
    block = row.block(link, has_hooks=False, max_duration_ms=max_duration_ms)
    return PlainTransaction(link, database, block)


def async_transaction_on(
    database: Any,  # noqa: ANN401 -- whatever the user works with
    row: Row,
    *,
    max_duration_ms: int = MAX_DURATION_MS,
) -> AsyncDatabaseTransaction:
    """Find the adapter for a session or connection that is awaited."""
    if _is_of("sqlalchemy", database):
        from escrowmq.client import async_sqlalchemy_transactions

        return async_sqlalchemy_transactions.async_transaction_on(database, row, max_duration_ms)
    link: AsyncLink
    if _is_a("aiosqlite", "Connection", database):
        link = AioSqliteLink(database)
    elif _is_a("psycopg", "AsyncConnection", database):
        link = AsyncPsycopgLink(database)
    elif _is_a("asyncpg", "Connection", database) or _is_a(
        "asyncpg.pool", "PoolConnectionProxy", database
    ):
        asyncpg = AsyncpgLink(database)
        block = row.block(asyncpg, has_hooks=False, max_duration_ms=max_duration_ms)
        return AsyncpgTransaction(asyncpg, database, block)
    else:
        raise not_for_async_with(database)
    block = row.block(link, has_hooks=False, max_duration_ms=max_duration_ms)
    return AsyncPlainTransaction(link, database, block)


def _is_of(package: str, thing: object) -> bool:
    return any(kind.__module__.partition(".")[0] == package for kind in type(thing).__mro__)


def _is_a(package: str, name: str, thing: object) -> bool:
    # Whoever made the connection has imported its package; we need not.
    loaded = sys.modules.get(package)
    return loaded is not None and isinstance(thing, getattr(loaded, name))
