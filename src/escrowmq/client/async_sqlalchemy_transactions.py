"""The user's transaction in SQLAlchemy's sessions and connections that are awaited."""

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
    """On a session or connection that is awaited: the same, inside SQLAlchemy's own bridge."""

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
        """Whether the caller's own block commits; known once it has begun."""
        return self._inner.is_commit_owned_by_caller

    async def begin(self, now_ms: int) -> None:
        """Refuse at once what cannot work."""
        await self._run(lambda: self._inner.begin(now_ms))
        self._soon = self._inner.soon_marks()

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open."""
        self._inner.check_outermost()

    def mark_soon(self, number: int) -> None:
        """Mark a message before the next statement."""
        self._soon.add(number)

    async def mark(self) -> None:
        """Write the marks that were not written yet."""
        numbers = self._soon.take()
        if numbers:
            await self._run(lambda: self._inner.mark(numbers))

    async def surviving(self) -> frozenset[int]:
        """Find the messages whose savepoints were not rolled back."""
        return await self._soon.surviving(lambda: self._run(self._inner.surviving))

    async def insert_row(self, now_ms: int) -> None:
        """Write the ledger's row as the last statement."""
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
        """Roll back and throw the driver's connection away."""
        self._soon.take()
        await self._run(self._inner.poison)

    async def release(self) -> None:
        """Take our hands off."""
        self._soon.take()
        self._inner.release()

    def on_before_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await when the caller is about to commit."""
        self._inner.on_before_commit(lambda: await_only(callback()))

    def on_ended(self, callback: Callable[[Ending], Awaitable[None]]) -> None:
        """Await once when the transaction has ended."""
        self._inner.on_ended(lambda ending: await_only(callback(ending)))

    async def _run(self, work: Callable[[], T]) -> T:
        return await self._database.run_sync(lambda _inner: work())


def async_transaction_on(
    database: Any,  # noqa: ANN401 -- as above
    row: Row,
    max_duration_ms: int,
) -> AsyncDatabaseTransaction:
    """Find the adapter for what is awaited."""
    if isinstance(database, async_scoped_session):
        database = database()
    if isinstance(database, AsyncSession | AsyncConnection):
        return AsyncSqlAlchemyTransaction(database, row, max_duration_ms)
    raise not_for_async_with(database)
