"""Running users' handlers: so many at a time, each message to its end, whatever the handler does.

A handler that returns has consumed the message.  One that raises, takes too long, or returns before
its ``consumer.transaction`` has committed, has not: the broker is asked to bring the message again
later, and after the last retry it becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.messages import Received

log = logging.getLogger(__name__)

Handler: TypeAlias = "Callable[[Received], object] | Callable[[Received], Awaitable[object]]"

#: The message that the running handler was given.
current_message: ContextVar[Received] = ContextVar("escrowmq_message")


class RetryLater(Exception):
    """Raised by a handler to choose when its message comes again."""

    def __init__(self, after_ms: int) -> None:
        super().__init__(f"again after {after_ms} ms")
        self.after_ms = after_ms


class GiveUp(Exception):
    """Raised by a handler whose message will never be handled: it becomes a dead letter at once."""


class Left(Exception):
    """Nobody asked for this message."""


class AlreadyConsumed(RequestRefused):
    """The message was consumed before, in a transaction that committed."""


class Outcome(Enum):
    """What became of a message."""

    DONE = "done"
    #: Again, after a while that the broker chooses.
    AGAIN = "again"
    GIVEN_UP = "given_up"
    #: Nobody took it: it stays open, and comes again when the group goes on from here.
    LEFT = "left"


class Handled:
    """An outcome, and a wait that the handler chose (0: the broker's)."""

    __slots__ = ("after_ms", "outcome")

    def __init__(self, outcome: Outcome, after_ms: int = 0) -> None:
        self.outcome = outcome
        self.after_ms = after_ms


class Handlers:
    """Belongs to one event loop; plain handlers run in threads of their own."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="escrowmq-handler")
        self.running = 0

    async def admit(self) -> None:
        """Wait until another message may be handled; ``handle`` gives the slot back."""
        await self._slots.acquire()

    async def handle(self, handler: Handler, message: Received) -> Handled:
        """Run a handler to its end, within a slot that was admitted."""
        self.running += 1
        try:
            return await self._handle(handler, message)
        finally:
            self.running -= 1
            self._slots.release()

    async def _handle(self, handler: Handler, message: Received) -> Handled:
        facts = {"topic": message.topic, "message_id": message.message_id}
        if message.problem:
            log.warning("message_unreadable", extra={**facts, "why": message.problem})
            return Handled(Outcome.GIVEN_UP)
        message.transactions.clear()
        try:
            with suppress(AlreadyConsumed):
                async with asyncio.timeout(self._timeout_s):
                    await self._call(handler, message)
            _check_committed(message)
        except RetryLater as later:
            return Handled(Outcome.AGAIN, later.after_ms)
        except GiveUp:
            return Handled(Outcome.GIVEN_UP)
        except Left:
            return Handled(Outcome.LEFT)
        except Exception as error:
            if isinstance(error, TimeoutError):
                # A thread cannot be stopped: its late end changes nothing any more.
                facts["timeout_s"] = str(self._timeout_s)
            log.warning("handler_failed", extra=facts, exc_info=error)
            return Handled(Outcome.AGAIN)
        return Handled(Outcome.DONE)

    async def _call(self, handler: Handler, message: Received) -> None:
        token = current_message.set(message)
        try:
            if inspect.iscoroutinefunction(handler):
                await handler(message)
                return
            loop = asyncio.get_running_loop()
            context = copy_context()
            await loop.run_in_executor(self._threads, context.run, handler, message)
        finally:
            current_message.reset(token)

    def close(self) -> None:
        """Let the threads go; one that hangs is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _check_committed(message: Received) -> None:
    """Refuse a handler that returned before its database transaction had committed."""
    for transaction in message.transactions:
        if transaction.is_uncommitted:
            raise RequestRefused(
                "handler_uncommitted",
                "the handler returned, and its consumer.transaction has not committed",
                state=transaction.state,
            )
