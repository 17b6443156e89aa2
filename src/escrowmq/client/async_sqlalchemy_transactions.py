"""The user's transaction on SQLAlchemy's async sessions and connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.util import await_only

from escrowmq.client.database_block import Row
from escrowmq.client.database_transactions import AsyncDatabaseTransaction, Ending
from escrowmq.client.ledger_sql import not_for_async_with
from escrowmq.client.sqlalchemy_transactions import SqlAlchemyTransaction
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

T = TypeVar("T")


class AsyncSqlAlchemyTransaction:
    """Adapter for an async session or connection; runs the sync adapter in SQLAlchemy's bridge."""

    def __init__(
        self, database: AsyncSession | AsyncConnection, row: Row, max_duration_ms: int
    ) -> None:
        self._database = database
        if isinstance(database, AsyncSession):
            inner: Session | Connection | None = database.sync_session
        else:
            inner = database.sync_connection
        if inner is None:
            raise RequestRefused("connection_not_started", "await the connection first")
        self._inner = SqlAlchemyTransaction(inner, row, max_duration_ms)

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller's own block commits; known after ``begin``."""
        return self._inner.is_commit_owned_by_caller

    async def begin(self, now_ms: int) -> None:
        """Begin, and refuse a database or mode that cannot work."""
        await self._run(lambda: self._inner.begin(now_ms))
        self._soon = self._inner.soon_marks()

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open."""
        self._inner.check_outermost()

    def mark_soon(self, number: int) -> None:
        """Schedule a message's mark, to be written before the next statement."""
        self._soon.add(number)

    async def mark(self) -> None:
        """Write the scheduled marks."""
        numbers = self._soon.take()
        if numbers:
            await self._run(lambda: self._inner.mark(numbers))

    async def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        return await self._soon.surviving(lambda: self._run(self._inner.surviving))

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
        self._soon.end()
        await self._run(lambda: self._inner.insert_row(now_ms))

    async def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        await self._run(self._inner.commit)

    async def rollback(self) -> None:
        """Roll back."""
        self._soon.take()
        await self._run(self._inner.rollback)

    async def poison(self) -> None:
        """Roll back and discard the driver's connection."""
        self._soon.take()
        await self._run(self._inner.poison)

    async def release(self) -> None:
        """Detach from the transaction without ending it."""
        self._soon.take()
        self._inner.release()

    def on_before_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await the callback when the caller is about to commit."""
        self._inner.on_before_commit(lambda: await_only(callback()))

    def on_ended(self, callback: Callable[[Ending], Awaitable[None]]) -> None:
        """Await the callback once when the transaction has ended."""
        self._inner.on_ended(lambda ending: await_only(callback(ending)))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._database.run_sync(lambda _inner: work())


def async_transaction_on(
    database: Any,  # noqa: ANN401 -- as above
    row: Row,
    max_duration_ms: int,
) -> AsyncDatabaseTransaction:
    """Return the adapter for an async session or connection."""
    if isinstance(database, async_scoped_session):
        database = database()
    if isinstance(database, AsyncSession | AsyncConnection):
        return AsyncSqlAlchemyTransaction(database, row, max_duration_ms)
    raise not_for_async_with(database)
