"""Transactions as a ``with`` block: messages go out if, and only if, the database commits.

    with producer.transaction(Session(engine)) as tx:
        tx.db.add(Order(id=42, paid=True))
        tx.send("order-paid", b"42", key="42")

``transaction_order`` defines the order of the steps; this module executes them, in sync and async
form. The database is always used on the caller's thread or the caller's loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from escrowmq.client.background import background
from escrowmq.client.messages import (
    Body,
    Message,
    MessageFields,
    message_of,
    new_transaction_id,
)
from escrowmq.client.outgoing import Resolution
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
    from types import TracebackType
    from typing import Unpack

    from escrowmq.client.database_block import Row
    from escrowmq.client.database_transactions import (
        AsyncDatabaseTransaction,
        DatabaseTransaction,
        Ending,
    )
    from escrowmq.client.ledger_block import RowFacts
    from escrowmq.client.outgoing import Held
    from escrowmq.client.producer_core import ProducerCore

DatabaseT = TypeVar("DatabaseT")


class _Block(Generic[DatabaseT]):
    """Shared part of both blocks."""

    _database: DatabaseTransaction | AsyncDatabaseTransaction
    _is_consuming = False

    def __init__(self, core: ProducerCore, db: DatabaseT) -> None:
        if core.ledger is None:
            raise RequestRefused(
                "producer_without_ledger",
                "make it with ledger=SqlLedger(…)",
                producer_group=core.group,
            )
        #: The session or connection that the block was given.
        self.db = db
        self._core = core
        self._ledger = core.ledger
        self._order = Order(new_transaction_id(), is_consuming=self._is_consuming, codec=core.codec)
        self._is_begun = False

    @property
    def transaction_id(self) -> str:
        """The id by which the broker and the ledger know the transaction."""
        return self._order.transaction_id

    @property
    def state(self) -> TransactionState:
        """The current state; ``committed_untold`` if the broker's last response was lost."""
        return self._order.state

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that were sent in the block so far."""
        return tuple(self._order.messages)

    def _check_takes(self) -> int:
        """Refuse a message that cannot be sent; return its number."""
        if not self._is_begun:
            raise RequestRefused("transaction_not_begun", "send within its with block")
        number = self._order.check_takes()
        if not self._ledger.savepoints:
            self._database.check_outermost()
        return number

    def _check_may_hold(self) -> None:
        """Refuse inside a savepoint: its rollback could not withdraw a held message."""
        if not self._is_begun:
            raise RequestRefused("transaction_not_begun", "hold within its with block")
        if self._order.is_inside:
            self._database.check_outermost()

    def __repr__(self) -> str:
        count = len(self._order.messages)
        return f"<{type(self).__name__} {self.transaction_id} {self.state}, {count} messages>"

    def _check_new(self) -> None:
        if self._is_begun:
            raise RequestRefused("transaction_over", "a block can be entered once")

    def _steps(self, error: BaseException | None) -> Steps:
        """Return the steps that follow the end of the block."""
        return self._order.leave_block(
            error, is_commit_owned_by_caller=self._database.is_commit_owned_by_caller
        )

    def _row_of(self, row: RowFacts) -> Row:
        """Return the row that the block writes; a consumer's block adds its message's row."""
        return row

    def _held(self) -> Held:
        held = self._order.held
        assert held is not None
        return held


class Transaction(_Block[DatabaseT]):
    """A sync block; ``Producer.transaction`` makes it."""

    _database: DatabaseTransaction

    def __enter__(self) -> Self:
        self._check_new()
        self._database = self._ledger.transaction(
            self.db,
            transaction_id=self.transaction_id,
            producer_group=self._core.group,
            row_of=self._row_of,
        )
        self._database.begin(_now_ms())
        self._is_begun = True
        self._database.on_before_commit(lambda: self._follow(self._order.before_commit()))
        self._database.on_ended(self._ended)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._follow(self._steps(error))

    def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message when, and only when, the database commits.

        It leaves at the end of the block and may be changed until then. An object is encoded now; a
        function is called at the end, after the session's flush. A message that is sent inside a
        savepoint belongs to it: if the savepoint is rolled back, the message is not sent.
        """
        number = self._check_takes()
        message = message_of(topic, body, fields)
        message.seal(self._core.codec)
        if self._ledger.savepoints:
            self._database.mark([number])
        self._order.put(message)
        return message

    def hold(self) -> None:
        """Have the broker hold the block's messages now instead of at the end of the block.

        Call it before the first write, so that the database holds no locks while the broker writes.
        Bodies that are functions are called here. The block takes no messages after this call.
        """
        self._check_may_hold()
        self._follow(self._order.hold_early())

    def _surviving(self) -> frozenset[int] | None:
        return self._database.surviving() if self._ledger.savepoints else None

    def _ended(self, ending: Ending) -> None:
        self._follow(self._order.ended(ending))

    def _follow(self, steps: Steps) -> None:
        database = self._database
        follow(
            steps,
            {
                Step.FLUSH: _flush_of(self.db),
                Step.SURVIVING: self._surviving,
                Step.INSERT_ROW: lambda: database.insert_row(_now_ms()),
                Step.COMMIT: database.commit,
                Step.ROLLBACK: database.rollback,
                Step.POISON: database.poison,
                Step.RELEASE: database.release,
                Step.COMMIT_ALONE: self._commit_alone,
                Step.HOLD: self._hold,
                Step.DECIDE: lambda: background().run(
                    self._core.decide(self._held(), Resolution.COMMIT)
                ),
                Step.TELL_ROLLBACK: lambda: background().run(
                    self._core.roll_back_soon(self._held())
                ),
            },
        )

    def _hold(self) -> Held:
        order = self._order
        return background().run(
            self._core.hold(order.transaction_id, order.messages, ledger=self._ledger.uuid())
        )

    def _commit_alone(self) -> None:
        self._database.release()
        try:
            self._database.commit()
        except BaseException:
            with suppress(Exception):
                self._database.rollback()
            raise


class AsyncTransaction(_Block[DatabaseT]):
    """An async block; ``AsyncProducer.transaction`` makes it."""

    _database: AsyncDatabaseTransaction

    async def __aenter__(self) -> Self:
        self._check_new()
        self._database = await self._ledger.transaction_async(
            self.db,
            transaction_id=self.transaction_id,
            producer_group=self._core.group,
            row_of=self._row_of,
        )
        await self._database.begin(_now_ms())
        self._is_begun = True
        self._database.on_before_commit(lambda: self._follow(self._order.before_commit()))
        self._database.on_ended(self._ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._follow(self._steps(error))

    def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message when, and only when, the database commits, as in a sync block.

        It needs psycopg, asyncpg or aiosqlite below. With another driver use ``send_async``,
        otherwise the block is refused at its end.
        """
        number = self._check_takes()
        message = message_of(topic, body, fields)
        message.seal(self._core.codec)
        if self._ledger.savepoints:
            self._database.mark_soon(number)
        self._order.put(message)
        return message

    async def send_async(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Message:
        """Send a message and write its savepoint mark at once; works with any driver."""
        message = self.send(topic, body, **fields)
        if self._ledger.savepoints:
            await self._database.mark()
        return message

    async def hold(self) -> None:
        """Have the broker hold the block's messages now instead of at the end of the block.

        Call it before the first write, so that the database holds no locks while the broker writes.
        Bodies that are functions are called here. The block takes no messages after this call.
        """
        self._check_may_hold()
        await self._follow(self._order.hold_early())

    async def _surviving(self) -> frozenset[int] | None:
        return await self._database.surviving() if self._ledger.savepoints else None

    async def _ended(self, ending: Ending) -> None:
        await self._follow(self._order.ended(ending))

    async def _follow(self, steps: Steps) -> None:
        database = self._database
        await follow_async(
            steps,
            {
                Step.FLUSH: self._flush,
                Step.SURVIVING: self._surviving,
                Step.INSERT_ROW: lambda: database.insert_row(_now_ms()),
                Step.COMMIT: database.commit,
                Step.ROLLBACK: database.rollback,
                Step.POISON: database.poison,
                Step.RELEASE: database.release,
                Step.COMMIT_ALONE: self._commit_alone,
                Step.HOLD: self._hold,
                Step.DECIDE: lambda: self._core.decide(self._held(), Resolution.COMMIT),
                Step.TELL_ROLLBACK: lambda: self._core.roll_back_soon(self._held()),
            },
        )

    async def _flush(self) -> None:
        flushed = _flush_of(self.db)()
        if flushed is not None:
            await flushed

    async def _hold(self) -> Held:
        order = self._order
        return await self._core.hold(
            order.transaction_id, order.messages, ledger=await self._ledger.uuid_async()
        )

    async def _commit_alone(self) -> None:
        await self._database.release()
        try:
            await self._database.commit()
        except BaseException:
            with suppress(Exception):
                await self._database.rollback()
            raise


def _flush_of(database: object) -> Callable[[], Any]:
    """Return the flush of a session; a connection has nothing to flush."""
    flush: Callable[[], Any] | None = getattr(database, "flush", None)
    return flush or (lambda: None)


def _now_ms() -> int:
    return int(time.time() * 1_000)
