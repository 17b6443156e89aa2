"""The user's transaction on SQLAlchemy's async sessions and connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.util import await_only

from escrowmq.client.database.ledger_sql import not_for_async_with
from escrowmq.client.database.sqlalchemy_transactions import SqlAlchemyTransaction
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

    from escrowmq.client.database.block import BlockRow
    from escrowmq.client.database.transactions import TransactionEnding

T = TypeVar("T")
P = ParamSpec("P")


def _bridged(
    method: Callable[Concatenate[SqlAlchemyTransaction, P], T],
) -> Callable[Concatenate[AsyncSqlAlchemyTransaction, P], Coroutine[Any, Any, T]]:
    """Return the async form of a sync adapter's method: SQLAlchemy's greenlet runs that method."""

    def call(
        self: AsyncSqlAlchemyTransaction, /, *values: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, T]:
        return self.database.run_sync(lambda _inner: method(self.inner, *values, **named))

    return call


class AsyncSqlAlchemyTransaction:
    """Adapter for an async session or connection, over the sync adapter of the object inside."""

    def __init__(
        self, database: AsyncSession | AsyncConnection, row: BlockRow, max_duration_ms: int
    ) -> None:
        self.database = database
        if isinstance(database, AsyncSession):
            inside: Session | Connection | None = database.sync_session
        else:
            inside = database.sync_connection
        if inside is None:
            raise RequestRefused("connection_not_started", "await the connection first")
        self.inner = SqlAlchemyTransaction(inside, row, max_duration_ms)
        self.check_outermost = self.inner.check_outermost
        self.mark_soon = self.inner.mark_soon

    @property
    def is_commit_owned_by_caller(self) -> bool:
        """Whether the caller issues the COMMIT, not our block; known after ``begin``."""
        return self.inner.is_commit_owned_by_caller

    begin = _bridged(SqlAlchemyTransaction.begin)
    mark = _bridged(SqlAlchemyTransaction.mark)
    surviving = _bridged(SqlAlchemyTransaction.surviving)
    insert_row = _bridged(SqlAlchemyTransaction.insert_row)
    commit = _bridged(SqlAlchemyTransaction.commit)
    rollback = _bridged(SqlAlchemyTransaction.rollback)
    poison = _bridged(SqlAlchemyTransaction.poison)
    release = _bridged(SqlAlchemyTransaction.release)

    def on_before_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Register the callback to await just before the caller's COMMIT."""
        self.inner.on_before_commit(lambda: await_only(callback()))

    def on_ended(self, callback: Callable[[TransactionEnding], Awaitable[None]]) -> None:
        """Register a callback for the end of a transaction that the caller commits."""
        self.inner.on_ended(lambda ending: await_only(callback(ending)))


def async_transaction_on(
    database: object, row: BlockRow, max_duration_ms: int
) -> AsyncSqlAlchemyTransaction:
    """Return the adapter for an async session or connection."""
    if isinstance(database, async_scoped_session):
        database = database()
    if isinstance(database, AsyncSession | AsyncConnection):
        return AsyncSqlAlchemyTransaction(database, row, max_duration_ms)
    raise not_for_async_with(database)
