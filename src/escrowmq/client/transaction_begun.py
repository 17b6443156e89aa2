"""Transactions in RocketMQ 5's style: begin, send half messages at once, commit or roll back.

They are not tied to a database: the producer's ``checker`` answers their back-checks. A ``with``
block commits at its end. An exception decides nothing, because the local transaction may have
committed before it was raised: a back-check asks the checker. Only ``rollback()`` rolls back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from escrowmq.client.background import background
from escrowmq.client.messages import (
    Body,
    Message,
    MessageFields,
    message_of,
    new_transaction_id,
)
from escrowmq.client.outgoing import Decided, Held, Resolution
from escrowmq.client.transaction_order import MESSAGES_MAX
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Unpack

    from escrowmq.client.producer_core import ProducerCore


class _Begun:
    """Shared part of both kinds."""

    def __init__(self, core: ProducerCore) -> None:
        self.transaction_id = new_transaction_id()
        self._core = core
        self._held: Held | None = None
        self._number = 0
        self._is_over = False

    def __repr__(self) -> str:
        over = "over" if self._is_over else "open"
        return f"<{type(self).__name__} {self.transaction_id} {over}, {self._number} messages>"

    def _sealed(self, message: Message) -> Message:
        """Encode an object before anything is sent."""
        message.seal(self._core.codec)
        return message

    async def _send(self, message: Message) -> Held:
        if self._is_over:
            raise RequestRefused(
                "transaction_over", "begin another one", transaction_id=self.transaction_id
            )
        if self._number >= MESSAGES_MAX:
            raise RequestRefused(
                "too_many_messages", "use several transactions", messages_max=MESSAGES_MAX
            )
        address = self._held.address if self._held is not None else ""
        held = await self._core.hold(
            self.transaction_id, [message], number=self._number, address=address
        )
        # A failed request keeps its number: its repeat is stored, or gets the first one's answer.
        self._number += 1
        self._held = self._held or held
        return held

    def _is_to_commit(self, error: BaseException | None) -> bool:
        """Whether the end of the ``with`` block commits; the block takes no more messages."""
        is_over, self._is_over = self._is_over, True
        return error is None and not is_over

    async def _end(self, resolution: Resolution) -> Decided | None:
        """Decide the transaction; return None if it holds no messages."""
        self._is_over = True
        if self._held is None:
            return None
        return await self._core.decide(self._held, resolution)


class BegunTransaction(_Begun):
    """A sync transaction; ``Producer.begin`` makes it. Use it from one thread only."""

    def send(self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]) -> Held:
        """Have the broker hold a half message now."""
        message = self._sealed(message_of(topic, body, fields))
        if message.has_functions:
            # Call the functions on the caller's thread.
            message.wire(self._core.codec)
        return background().run(self._send(message))

    def commit(self) -> Decided | None:
        """Make the messages visible, all at once."""
        return background().run(self._end(Resolution.COMMIT))

    def rollback(self) -> Decided | None:
        """Drop the messages; also allowed after the ``with`` block has raised."""
        return background().run(self._end(Resolution.ROLLBACK))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_to_commit(error):
            self.commit()


class AsyncBegunTransaction(_Begun):
    """An async transaction; ``AsyncProducer.begin`` makes it."""

    async def send(
        self, topic: str | Message, body: Body = b"", **fields: Unpack[MessageFields]
    ) -> Held:
        """Have the broker hold a half message now."""
        return await self._send(self._sealed(message_of(topic, body, fields)))

    async def commit(self) -> Decided | None:
        """Make the messages visible, all at once."""
        return await self._end(Resolution.COMMIT)

    async def rollback(self) -> Decided | None:
        """Drop the messages; also allowed after the ``with`` block has raised."""
        return await self._end(Resolution.ROLLBACK)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_to_commit(error):
            await self.commit()
