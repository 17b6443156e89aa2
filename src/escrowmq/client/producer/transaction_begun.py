"""Transactions in RocketMQ 5's style: begin, send half messages at once, commit or roll back.

They are not tied to a database: the producer's ``checker`` answers their back-checks. A ``with``
block commits at its end. An exception decides nothing, because the local transaction may have
committed before it was raised: a back-check asks the checker. Only ``rollback()`` rolls back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.client.messages.message_ids import new_transaction_id
from escrowmq.client.messages.messages import (
    Body,
    Message,
    MessageFields,
    fill_in,
    message_of,
)
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction
from escrowmq.client.network.background import background
from escrowmq.client.producer.transaction_steps import MESSAGES_MAX
from escrowmq.client.with_blocks import AsyncWithBlock, WithBlock
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution

if TYPE_CHECKING:
    from typing import Unpack

    from escrowmq.client.producer.core import ProducerCore


class _Begun:
    """Shared part of the sync and the async transaction."""

    def __init__(self, core: ProducerCore) -> None:
        self.transaction_id = new_transaction_id()
        self._core = core
        self._held: HeldTransaction | None = None
        self._number = 0
        self._is_over = False

    def __repr__(self) -> str:
        over = "over" if self._is_over else "open"
        return f"<{type(self).__name__} {self.transaction_id} {over}, {self._number} messages>"

    async def _send(self, message: Message) -> HeldTransaction:
        if self._is_over:
            raise RequestRefused(
                "transaction_over", "begin another one", transaction_id=self.transaction_id
            )
        if self._number >= MESSAGES_MAX:
            raise RequestRefused(
                "too_many_messages", "use several transactions", messages_max=MESSAGES_MAX
            )
        address = self._held.address if self._held is not None else ""
        producing = await self._core.started()
        held = await producing.hold(
            self.transaction_id, [message], number=self._number, address=address
        )
        # Count successes only: a repeat of a failed request then has the same number, and the
        # broker stores it, or answers as it did to the first.
        self._number += 1
        self._held = self._held or held
        return held

    def _is_to_commit(self, error: BaseException | None) -> bool:
        """Refuse further messages; return whether the end of the ``with`` block commits."""
        is_over, self._is_over = self._is_over, True
        return error is None and not is_over

    async def _end(self, resolution: Resolution) -> FinalDecision | None:
        """Commit or roll back at the broker; return None if no message was held."""
        self._is_over = True
        if self._held is None:
            return None
        return await (await self._core.started()).decide(self._held, resolution)


class BegunTransaction(_Begun, WithBlock):
    """A sync transaction; ``Producer.begin`` makes it. Use it from one thread only."""

    def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> HeldTransaction:
        """Have the broker hold a half message now."""
        message = message_of(topic, body, fields)
        fill_in(message, self._core.codec)
        return background().run(self._send(message))

    def commit(self) -> FinalDecision | None:
        """Make the messages visible, all at once."""
        return background().run(self._end(Resolution.COMMIT))

    def rollback(self) -> FinalDecision | None:
        """Drop the messages; also allowed after the ``with`` block has raised."""
        return background().run(self._end(Resolution.ROLLBACK))

    def _leave(self, error: BaseException | None) -> None:
        if self._is_to_commit(error):
            self.commit()


class AsyncBegunTransaction(_Begun, AsyncWithBlock):
    """An async transaction; ``AsyncProducer.begin`` makes it."""

    async def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> HeldTransaction:
        """Have the broker hold a half message now."""
        message = message_of(topic, body, fields)
        message.seal(self._core.codec)
        return await self._send(message)

    async def commit(self) -> FinalDecision | None:
        """Make the messages visible, all at once."""
        return await self._end(Resolution.COMMIT)

    async def rollback(self) -> FinalDecision | None:
        """Drop the messages; also allowed after the ``with`` block has raised."""
        return await self._end(Resolution.ROLLBACK)

    async def _leave(self, error: BaseException | None) -> None:
        if self._is_to_commit(error):
            await self.commit()
