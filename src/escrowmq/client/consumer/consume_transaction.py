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

from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from escrowmq.client.database.transactions import async_transaction_on, transaction_on
from escrowmq.client.ledger.chain_block import ChainRow
from escrowmq.client.ledger.consumed_block import ConsumedRow
from escrowmq.client.messages.handling import current_message
from escrowmq.client.producer.transaction import (
    AsyncTransaction,
    OrderedBlock,
    SendingBlock,
    Transaction,
)
from escrowmq.client.producer.transaction_steps import TransactionSteps
from escrowmq.client.trampoline import Calls, SyncOrAsync, run, run_async
from escrowmq.client.with_blocks import AsyncWithBlock, WithBlock
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.client.ledger.producer_block import RowFacts
    from escrowmq.client.messages.messages import Received
    from escrowmq.client.producer.core import ProducerCore
    from escrowmq.client.producer.producer import AsyncProducer, Producer

#: Limit of a block: the largest ``handler_timeout_s``, so that only the handler's timeout counts.
DURATION_MS_MAX = 7 * 86_400_000

DatabaseT = TypeVar("DatabaseT")


class ConsumeTransaction(OrderedBlock[DatabaseT], WithBlock, AsyncWithBlock):
    """A ``with`` block, or an ``async with`` block for an async session or connection."""

    _join_on: Callable[..., Any]

    def __init__(self, group: str, db: DatabaseT, message: Received | None = None) -> None:
        super().__init__(db, TransactionSteps("", is_consuming=True))
        self.message = _message_of(group, message)
        self._row = ConsumedRow.of(group, self.message)

    def __enter__(self) -> Self:
        self._run, self._join_on = run, transaction_on
        return super().__enter__()

    async def __aenter__(self) -> Self:
        self._run, self._join_on = run_async, async_transaction_on
        return await super().__aenter__()

    def _join(self) -> SyncOrAsync:
        return self._join_on(self.db, self._row, max_duration_ms=DURATION_MS_MAX)

    def _begin(self) -> Calls[None]:
        yield from super()._begin()
        self.message.transactions.append(self._order)


class _Chain(SendingBlock[DatabaseT]):
    """Shared part of blocks with a producer: they write two rows, and the message lists them."""

    _is_consuming = True

    def __init__(
        self, core: ProducerCore, group: str, db: DatabaseT, message: Received | None = None
    ) -> None:
        super().__init__(core, db)
        #: The consumed message.
        self.message = _message_of(group, message)
        self._consumed = ConsumedRow.of(group, self.message)

    def _row_of(self, row: RowFacts) -> ChainRow:
        return ChainRow(row, self._consumed, lambda: self._order.held is not None)

    def _begin(self) -> Calls[None]:
        yield from super()._begin()
        self.message.transactions.append(self._order)


class ChainTransaction(_Chain[DatabaseT], Transaction[DatabaseT]):
    """Consume, write and produce in one transaction, for sync code."""

    async def __aenter__(self) -> NoReturn:
        raise _mixed("AsyncProducer", "async with")

    async def __aexit__(self, *_: object) -> None:
        """Exist only so that ``async with`` reaches the refusal in ``__aenter__``."""


class AsyncChainTransaction(_Chain[DatabaseT], AsyncTransaction[DatabaseT]):
    """Consume, write and produce in one transaction, for async code."""

    def __enter__(self) -> NoReturn:
        raise _mixed("Producer", "with")

    def __exit__(self, *_: object) -> None:
        """Exist only so that ``with`` reaches the refusal in ``__enter__``."""


def chain_on(
    producer: Producer | AsyncProducer, group: str, db: DatabaseT, message: Received | None
) -> ChainTransaction[DatabaseT] | AsyncChainTransaction[DatabaseT]:
    """Make the block that matches the producer, sync or async."""
    from escrowmq.client.producer.producer import Producer

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
