"""Effects exactly once: the handler's database transaction also records its message.

@consumer.subscribe("order-paid")
def ship(message):
    with consumer.transaction(Session(engine), message, producer=producer) as tx:
        tx.db.add(Shipment(order=int(message.body)))
        tx.send("order-shipped", message.body)

If the message is delivered again, the block raises AlreadyConsumed at entry, and the consumer
counts the message as done. With a producer, the messages sent in the block go out if, and only if,
that transaction commits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from escrowmq.client.chain_block import ChainRow
from escrowmq.client.consumed_block import ConsumedRow
from escrowmq.client.database_transactions import async_transaction_on, transaction_on
from escrowmq.client.handling import current_message
from escrowmq.client.transaction import AsyncTransaction, Transaction
from escrowmq.client.transaction_order import (
    Order,
    Step,
    Steps,
    TransactionState,
    follow,
    follow_async,
)
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.client.database_transactions import (
        AsyncDatabaseTransaction,
        DatabaseTransaction,
        Ending,
    )
    from escrowmq.client.ledger_block import RowFacts
    from escrowmq.client.messages import Received
    from escrowmq.client.producer import AsyncProducer, Producer
    from escrowmq.client.producer_core import ProducerCore

#: The largest ``handler_timeout_s``: the handler's timeout limits the block, not this.
DURATION_MS_MAX = 7 * 86_400_000

DatabaseT = TypeVar("DatabaseT")


class ConsumeTransaction(Generic[DatabaseT]):
    """A ``with`` block, or an ``async with`` block for an async session or connection."""

    _database: DatabaseTransaction | AsyncDatabaseTransaction | None = None

    def __init__(self, group: str, db: DatabaseT, message: Received | None = None) -> None:
        #: The session or connection that the block was given.
        self.db = db
        self.message = _message_of(group, message)
        self._row = ConsumedRow.of(group, self.message)
        self._order = Order("", is_consuming=True)

    @property
    def state(self) -> TransactionState:
        """The current state of the transaction."""
        return self._order.state

    def __enter__(self) -> Self:
        self._check_new()
        database = transaction_on(self.db, self._row, max_duration_ms=DURATION_MS_MAX)
        database.begin(_now_ms())
        database.on_before_commit(lambda: self._follow(self._order.before_commit()))
        database.on_ended(lambda ending: self._follow(self._order.ended(ending)))
        self._begun(database)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._follow(self._steps(error))

    async def __aenter__(self) -> Self:
        self._check_new()
        database = async_transaction_on(self.db, self._row, max_duration_ms=DURATION_MS_MAX)
        await database.begin(_now_ms())
        database.on_before_commit(lambda: self._follow_async(self._order.before_commit()))
        database.on_ended(self._ended_async)
        self._begun(database)
        return self

    async def __aexit__(
        self, _kind: object, error: BaseException | None, _traceback: object
    ) -> None:
        await self._follow_async(self._steps(error))

    async def _ended_async(self, ending: Ending) -> None:
        await self._follow_async(self._order.ended(ending))

    def _check_new(self) -> None:
        if self._database is not None:
            raise RequestRefused("transaction_over", "a block can be entered once")

    def _begun(self, database: DatabaseTransaction | AsyncDatabaseTransaction) -> None:
        self._database = database
        self.message.transactions.append(self._order)

    def _steps(self, error: BaseException | None) -> Steps:
        assert self._database is not None
        return self._order.leave_block(
            error, is_commit_owned_by_caller=self._database.is_commit_owned_by_caller
        )

    def _follow(self, steps: Steps) -> None:
        follow(steps, {**self._doing(), Step.FLUSH: lambda: None})

    async def _follow_async(self, steps: Steps) -> None:
        await follow_async(steps, {**self._doing(), Step.FLUSH: _nothing})

    def _doing(self) -> dict[Step, Callable[[], Any]]:
        database = self._database
        assert database is not None
        return {
            Step.INSERT_ROW: lambda: database.insert_row(_now_ms()),
            Step.COMMIT: database.commit,
            Step.ROLLBACK: database.rollback,
            Step.POISON: database.poison,
        }


class _Chain:
    """Shared part of blocks with a producer: they write two rows and register at the message."""

    _is_consuming = True
    _order: Order
    _consumed: ConsumedRow
    #: The consumed message.
    message: Received

    def _consume(self, group: str, message: Received | None) -> None:
        self.message = _message_of(group, message)
        self._consumed = ConsumedRow.of(group, self.message)

    def _row_of(self, row: RowFacts) -> ChainRow:
        return ChainRow(row, self._consumed, lambda: self._order.held is not None)


class ChainTransaction(_Chain, Transaction[DatabaseT]):
    """Consume, write and produce in one transaction, for sync code."""

    def __init__(
        self, core: ProducerCore, group: str, db: DatabaseT, message: Received | None = None
    ) -> None:
        super().__init__(core, db)
        self._consume(group, message)

    def __enter__(self) -> Self:
        super().__enter__()
        self.message.transactions.append(self._order)
        return self

    async def __aenter__(self) -> NoReturn:
        raise _mixed("AsyncProducer", "async with")

    async def __aexit__(self, *_: object) -> None:
        """Exist only so that ``async with`` reaches the refusal in ``__aenter__``."""


class AsyncChainTransaction(_Chain, AsyncTransaction[DatabaseT]):
    """Consume, write and produce in one transaction, for async code."""

    def __init__(
        self, core: ProducerCore, group: str, db: DatabaseT, message: Received | None = None
    ) -> None:
        super().__init__(core, db)
        self._consume(group, message)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.message.transactions.append(self._order)
        return self

    def __enter__(self) -> NoReturn:
        raise _mixed("Producer", "with")

    def __exit__(self, *_: object) -> None:
        """Exist only so that ``with`` reaches the refusal in ``__enter__``."""


def chain_on(
    producer: Producer | AsyncProducer, group: str, db: DatabaseT, message: Received | None
) -> ChainTransaction[DatabaseT] | AsyncChainTransaction[DatabaseT]:
    """Make the block that matches the producer, sync or async."""
    from escrowmq.client.producer import Producer

    core = producer._core  # noqa: SLF001 - producer and consumer share one transaction
    if isinstance(producer, Producer):
        return ChainTransaction(core, group, db, message)
    return AsyncChainTransaction(core, group, db, message)


def _message_of(group: str, message: Received | None) -> Received:
    found = message or current_message.get(None)
    if found is None:
        raise RequestRefused(
            "no_message", "use it inside a handler, or name the message", group=group
        )
    return found


def _mixed(needed: str, block: str) -> RequestRefused:
    return RequestRefused("sync_and_async_mixed", f"a block of `{block}` needs a {needed}")


async def _nothing() -> None:
    """Skip FLUSH: no message depends on it, and INSERT_ROW flushes a session itself."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
