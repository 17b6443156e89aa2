"""The user's database transaction as a block sees it: the protocol, and adapters for drivers.

The adapters here are for drivers' own connections, which have no hooks, so the block commits.
SQLAlchemy's adapters are in ``sqlalchemy_transactions.py``.
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
    """How a transaction ended if the caller owned the commit."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    #: COMMIT was issued and failed or was interrupted: the ledger row will tell.
    UNKNOWN = "unknown"


class DatabaseTransaction(Protocol):
    """A sync transaction.

    If the block owns the commit, it calls ``begin``, then ``insert_row`` and ``commit``, or
    ``rollback``. If the caller does, the block calls ``begin``, ``on_before_commit`` and
    ``on_ended``; the first callback calls ``insert_row``, and raises to stop the commit.
    """

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block or hook commits; known after ``begin``."""
        ...

    def begin(self, now_ms: int) -> None:
        """Begin, and refuse what cannot work: autocommit, savepoints, another database."""
        ...

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open: its rollback would not withdraw a message."""
        ...

    def mark(self, numbers: Sequence[int]) -> None:
        """Mark messages in the currently open savepoint."""
        ...

    def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        ...

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement. If that fails, poison and raise."""
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
        """Detach, because nothing is sent. If the block owns the commit, it still commits."""
        ...

    def on_before_commit(self, callback: Callable[[], None]) -> None:
        """Call the callback when the caller is about to commit, at the outermost level."""
        ...

    def on_ended(self, callback: Callable[[Ending], None]) -> None:
        """Call the callback once when the transaction has ended; it must not raise."""
        ...


class AsyncDatabaseTransaction(Protocol):
    """An async transaction; otherwise as DatabaseTransaction."""

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block or hook commits; known after ``begin``."""
        ...

    async def begin(self, now_ms: int) -> None:
        """Begin, and refuse what cannot work."""
        ...

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open."""
        ...

    def mark_soon(self, number: int) -> None:
        """Schedule a message's mark, to be written before the next statement."""
        ...

    async def mark(self) -> None:
        """Write the scheduled marks."""
        ...

    async def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        ...

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
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
        """Detach from the transaction without ending it."""
        ...

    def on_before_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await the callback when the caller is about to commit."""
        ...

    def on_ended(self, callback: Callable[[Ending], Awaitable[None]]) -> None:
        """Await the callback once when the transaction has ended."""
        ...


class _Plain:
    """Shared part of both adapters: without hooks the block commits, and has no callbacks."""

    is_commit_owned_by_caller = False

    def check_outermost(self) -> None:
        """Do nothing: savepoints made by hand are invisible, and COMMIT includes them all."""

    def on_before_commit(self, callback: Callable[[], Any]) -> None:
        """Do nothing: the caller does not commit."""

    def on_ended(self, callback: Callable[[Ending], Any]) -> None:
        """Do nothing: the caller does not commit."""


class PlainTransaction(_Plain):
    """Transaction on a driver's own sync connection."""

    def __init__(self, link: Link, connection: object, block: Block) -> None:
        self._link = link
        self._connection = connection
        self._block = block
        self._unshadow: Callable[[], None] = lambda: None

    def begin(self, now_ms: int) -> None:
        """Begin, and refuse what cannot work. Afterwards the connection's commit() raises."""
        self._claim = Claim(self._connection, self._block)
        try:
            run(self._block.begin(now_ms), self._link)
        except BaseException:
            self._claim.give_up()
            raise
        self._unshadow = shadow_commit(self._connection, self._block.refuse_commit)

    def mark(self, numbers: Sequence[int]) -> None:
        """Mark messages in the currently open savepoint."""
        run(self._block.mark(numbers), self._link)

    def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        return run(self._block.look_for_marks(), self._link)

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
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
        """Detach; the transaction stays open."""
        self._block.stage = Stage.RELEASED
        self._unshadow()


class AsyncPlainTransaction(_Plain):
    """Transaction on a driver's own async connection."""

    def __init__(self, link: AsyncLink, connection: object, block: Block) -> None:
        self._link = link
        self._connection = connection
        self._block = block
        self._soon = SoonMarks(connection, block, link.dialect)
        self._unshadow: Callable[[], None] = lambda: None

    async def begin(self, now_ms: int) -> None:
        """Begin, and refuse what cannot work. Afterwards the connection's commit() raises."""
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
        """Schedule a message's mark, to be written before the next statement."""
        self._soon.add(number)

    async def mark(self) -> None:
        """Write the scheduled marks."""
        numbers = self._soon.take()
        if numbers:
            await run_async(self._block.mark(numbers), self._link)

    async def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        return await self._soon.surviving(
            lambda: run_async(self._block.look_for_marks(), self._link)
        )

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
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
        """Detach; the transaction stays open."""
        self._soon.take()
        self._block.stage = Stage.RELEASED
        self._unshadow()


class AsyncpgTransaction(AsyncPlainTransaction):
    """Transaction on an asyncpg connection, which the block begins."""

    _link: AsyncpgLink

    async def begin(self, now_ms: int) -> None:
        """Begin; a refusal leaves the connection as it was."""
        try:
            await super().begin(now_ms)
        except BaseException:
            with suppress(Exception):
                await self._link.end_own()
            raise


def transaction_on(
    database: Any,  # noqa: ANN401 -- any session or connection of the user
    row: Row,
    *,
    max_duration_ms: int = MAX_DURATION_MS,
) -> DatabaseTransaction:
    """Return the adapter for a sync session or connection."""
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
    database: Any,  # noqa: ANN401 -- any session or connection of the user
    row: Row,
    *,
    max_duration_ms: int = MAX_DURATION_MS,
) -> AsyncDatabaseTransaction:
    """Return the adapter for an async session or connection."""
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
    # If the connection exists, its package is already imported.
    loaded = sys.modules.get(package)
    return loaded is not None and isinstance(thing, getattr(loaded, name))
