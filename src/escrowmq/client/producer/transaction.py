"""Transactions as a ``with`` block: messages go out if, and only if, the database commits.

    with producer.transaction(Session(engine)) as tx:
        tx.db.add(Order(id=42, paid=True))
        tx.send("order-paid", b"42", key="42")

``transaction_steps.py`` defines the order of the steps; this module executes them, in sync and
async form. The database is always used on the caller's thread or the caller's loop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import partial
from operator import call
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from escrowmq.client.messages.message_ids import new_transaction_id
from escrowmq.client.messages.messages import (
    Body,
    Message,
    MessageFields,
    message_of,
)
from escrowmq.client.network.background import background
from escrowmq.client.producer.transaction_steps import (
    BlockStep,
    Steps,
    TransactionState,
    TransactionSteps,
)
from escrowmq.client.trampoline import Calls, Driven, SyncOrAsync, run_async
from escrowmq.client.with_blocks import AsyncWithBlock, WithBlock
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Unpack

    from escrowmq.client.database.block import BlockRow
    from escrowmq.client.ledger.producer_block import RowFacts
    from escrowmq.client.messages.outgoing import HeldTransaction
    from escrowmq.client.producer.core import ProducerCore
    from escrowmq.client.producer.producing import Producing

DatabaseT = TypeVar("DatabaseT")


class OrderedBlock(Driven, ABC, Generic[DatabaseT]):
    """Shared part of all blocks: an order of steps, and the database's transaction."""

    def __init__(self, db: DatabaseT, order: TransactionSteps) -> None:
        #: The session or connection that the block was given.
        self.db = db
        self._order = order
        #: The sync or async database transaction, once it has begun.
        self._database: Any = None

    @property
    def state(self) -> TransactionState:
        """The current state; ``committed_untold`` if the broker did not confirm the commit."""
        return self._order.state

    @abstractmethod
    def _join(self) -> SyncOrAsync:
        """Make the database transaction of the session or connection."""

    def _enter(self) -> SyncOrAsync:
        return self._run(self._begin(), call)

    def _leave(self, error: BaseException | None) -> SyncOrAsync:
        is_callers = self._database.is_commit_owned_by_caller
        return self._follow(self._order.leave_block(error, is_commit_owned_by_caller=is_callers))

    def _begin(self) -> Calls[None]:
        if self._database is not None:
            raise RequestRefused("transaction_over", "a block can be entered once")
        database = yield self._join
        yield partial(database.begin, _now_ms())
        self._database = database
        database.on_before_commit(lambda: self._follow(self._order.before_commit()))
        database.on_ended(lambda ending: self._follow(self._order.ended(ending)))

    def _follow(self, steps: Steps) -> SyncOrAsync:
        return self._run(steps, self._perform)

    def _perform(self, step: BlockStep) -> SyncOrAsync:
        if step is BlockStep.FLUSH:
            return self._flush()
        if step is BlockStep.INSERT_ROW:
            return self._database.insert_row(_now_ms())
        return getattr(self._database, step.value)()

    def _flush(self) -> SyncOrAsync:
        """Do nothing in a block that cannot send: INSERT_ROW flushes a session itself."""


class SendingBlock(OrderedBlock[DatabaseT]):
    """Shared part of a producer's blocks."""

    _is_consuming = False

    def __init__(self, core: ProducerCore, db: DatabaseT) -> None:
        if core.ledger is None:
            raise RequestRefused(
                "producer_without_ledger",
                "make it with ledger=SqlLedger(…)",
                producer_group=core.group,
            )
        order = TransactionSteps(
            new_transaction_id(), is_consuming=self._is_consuming, codec=core.codec
        )
        super().__init__(db, order)
        self._core = core
        self._ledger = core.ledger

    @property
    def transaction_id(self) -> str:
        """The id by which the broker and the ledger know the transaction."""
        return self._order.transaction_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that were sent in the block so far."""
        return tuple(self._order.messages)

    def __repr__(self) -> str:
        count = len(self._order.messages)
        return f"<{type(self).__name__} {self.transaction_id} {self.state}, {count} messages>"

    def _put(self, topic: str | Message, body: Body, fields: MessageFields) -> Message:
        """Keep a message until the end of the block; refuse one that cannot be sent."""
        if self._database is None:
            raise RequestRefused("transaction_not_begun", "send within its with block")
        number = self._order.check_takes()
        if not self._ledger.savepoints:
            self._database.check_outermost()
        message = message_of(topic, body, fields)
        message.seal(self._core.codec)
        if self._ledger.savepoints:
            self._mark(number)
        self._order.put(message)
        return message

    def _mark(self, number: int) -> None:
        self._database.mark_soon(number)

    def _hold_now(self) -> SyncOrAsync:
        if self._database is None:
            raise RequestRefused("transaction_not_begun", "hold within its with block")
        if self._order.is_inside:
            # A savepoint's rollback could not withdraw a held message.
            self._database.check_outermost()
        return self._follow(self._order.hold_early())

    def _row_of(self, row: RowFacts) -> BlockRow:
        """Return the row that the block writes; a consumer's block adds its message's row."""
        return row

    def _row(self) -> dict[str, Any]:
        """Return the arguments of the ledger's ``transaction``."""
        group, row_of = self._core.group, self._row_of
        return {"transaction_id": self.transaction_id, "producer_group": group, "row_of": row_of}

    @abstractmethod
    def _tell(self, request: Callable[[Producing], Awaitable[Any]]) -> SyncOrAsync:
        """Make a request of the producer."""

    def _perform(self, step: BlockStep) -> SyncOrAsync:
        match step:
            case BlockStep.SURVIVING if not self._ledger.savepoints:
                return None
            case BlockStep.HOLD:
                # Entering the block has read the UUID, so this call does not wait for the database.
                sent, ledger = self._order.messages, self._ledger.uuid()
                return self._tell(lambda it: it.hold(self.transaction_id, sent, ledger=ledger))
            case BlockStep.DECIDE:
                return self._tell(lambda it: it.decide(_held(self._order), Resolution.COMMIT))
            case BlockStep.TELL_ROLLBACK:
                return self._tell(lambda it: it.roll_back_soon(_held(self._order)))
        return super()._perform(step)

    def _flush(self) -> SyncOrAsync:
        """Flush a session; a connection has nothing to flush."""
        flush = getattr(self.db, "flush", None)
        return None if flush is None else flush()


class Transaction(SendingBlock[DatabaseT], WithBlock):
    """A sync block; ``Producer.transaction`` makes it."""

    def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message when, and only when, the database commits.

        It leaves at the end of the block and may be changed until then. An object is encoded now; a
        function is called at the end, after the session's flush. A message that is sent inside a
        savepoint belongs to it: if the savepoint is rolled back, the message is not sent.
        """
        return self._put(topic, body, fields)

    def hold(self) -> None:
        """Have the broker hold the block's messages now instead of at the end of the block.

        Call it before the first write, so that the database holds no locks while the broker writes.
        Bodies that are functions are called here. The block takes no messages after this call.
        """
        self._hold_now()

    def _mark(self, number: int) -> None:
        super()._mark(number)
        self._database.mark()

    def _join(self) -> SyncOrAsync:
        return self._ledger.transaction(self.db, **self._row())

    def _tell(self, request: Callable[[Producing], Awaitable[Any]]) -> SyncOrAsync:
        return background().run(self._core.call(request))


class AsyncTransaction(SendingBlock[DatabaseT], AsyncWithBlock):
    """An async block; ``AsyncProducer.transaction`` makes it."""

    _run = staticmethod(run_async)

    def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message when, and only when, the database commits, as in a sync block.

        It needs psycopg, asyncpg or aiosqlite below. With another driver use ``send_async``,
        otherwise the block is refused at its end.
        """
        return self._put(topic, body, fields)

    async def send_async(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message and write its savepoint mark at once; works with any driver."""
        message = self._put(topic, body, fields)
        if self._ledger.savepoints:
            await self._database.mark()
        return message

    async def hold(self) -> None:
        """Have the broker hold the block's messages now instead of at the end of the block.

        Call it before the first write, so that the database holds no locks while the broker writes.
        Bodies that are functions are called here. The block takes no messages after this call.
        """
        await self._hold_now()

    def _join(self) -> SyncOrAsync:
        return self._ledger.transaction_async(self.db, **self._row())

    def _tell(self, request: Callable[[Producing], Awaitable[Any]]) -> SyncOrAsync:
        return self._core.call(request)


def _held(order: TransactionSteps) -> HeldTransaction:
    assert order.held is not None
    return order.held


def _now_ms() -> int:
    return int(time.time() * 1_000)
