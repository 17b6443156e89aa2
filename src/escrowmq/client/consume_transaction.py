"""Exactly one effect: a handler's database transaction that also records its message.

@consumer.subscribe("order-paid")
def ship(message):
    with consumer.transaction(Session(engine)) as tx:
        tx.db.add(Shipment(order=int(message.body)))

Delivered again, the message is recognised at the top of the block: AlreadyConsumed is raised, which
the consumer takes for done.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from escrowmq.client.consumed_block import ConsumedRow
from escrowmq.client.database_transactions import (
    AsyncDatabaseTransaction,
    DatabaseTransaction,
    async_transaction_on,
    transaction_on,
)
from escrowmq.client.handling import current_message
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.messages import Received

#: A handler has a time limit of its own.
DURATION_MS_MAX = 7 * 86_400_000

DatabaseT = TypeVar("DatabaseT")


class ConsumeTransaction(Generic[DatabaseT]):
    """A ``with`` block, or an ``async with`` block if the session or connection is awaited."""

    def __init__(self, group: str, db: DatabaseT, message: Received | None = None) -> None:
        found = message or current_message.get(None)
        if found is None:
            raise RequestRefused(
                "no_message", "use it inside a handler, or name the message", group=group
            )
        #: What the block was given, to work with.
        self.db = db
        self.message: Received = found
        self._row = ConsumedRow.of(group, found)
        self._waited: DatabaseTransaction | None = None
        self._awaited: AsyncDatabaseTransaction | None = None

    def __enter__(self) -> Self:
        transaction = transaction_on(self.db, self._row, max_duration_ms=DURATION_MS_MAX)
        transaction.begin(_now_ms())
        self._waited = transaction
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        transaction = self._waited
        assert transaction is not None
        if transaction.is_commit_owned_by_caller:
            if kind is None:
                transaction.on_before_commit(lambda: transaction.insert_row(_now_ms()))
            else:
                # Whoever catches the error and commits would commit half an effect.
                transaction.poison()
        elif kind is None:
            transaction.insert_row(_now_ms())
            transaction.commit()
        else:
            transaction.rollback()

    async def __aenter__(self) -> Self:
        transaction = async_transaction_on(self.db, self._row, max_duration_ms=DURATION_MS_MAX)
        await transaction.begin(_now_ms())
        self._awaited = transaction
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        transaction = self._awaited
        assert transaction is not None
        if transaction.is_commit_owned_by_caller:
            if kind is None:
                transaction.on_before_commit(lambda: transaction.insert_row(_now_ms()))
            else:
                await transaction.poison()
        elif kind is None:
            await transaction.insert_row(_now_ms())
            await transaction.commit()
        else:
            await transaction.rollback()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
