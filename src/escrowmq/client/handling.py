"""Running users' handlers: so many at a time, each message to its end, whatever the handler does.

A handler that returns has consumed the message.  One that raises, takes too long, or returns before
its ``consumer.transaction`` has committed, has not: the broker is asked to bring the message again
later, and after the last retry it becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from enum import Enum
from typing import TYPE_CHECKING

from escrowmq.client.log_limit import LogLimit
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log

if TYPE_CHECKING:
    from escrowmq.client.body_reading import MessageHandler
    from escrowmq.client.messages import Received

log = event_log(__name__)

#: Failures of each kind and topic that the log has in full, per minute.
FAILURES_LOGGED_MAX = 10
FAILURES_AGAIN_S = 60.0

NOT_DECODABLE = "body_not_decodable"
YIELDS = "a handler returns; one that yields does nothing when it is called"

#: The message that the running handler was given.
current_message: ContextVar[Received] = ContextVar("escrowmq_message")


class RetryLater(Exception):
    """Raised by a handler to choose when its message comes again."""

    def __init__(self, after_ms: int) -> None:
        super().__init__(f"again after {after_ms} ms")
        if not isinstance(after_ms, int | float):
            raise TypeError(f"after_ms is a number, not a {type(after_ms).__name__}")
        self.after_ms = int(after_ms)


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
    """An outcome, its reason, and a wait that the handler chose (0: the broker's)."""

    __slots__ = ("after_ms", "outcome", "why")

    def __init__(self, outcome: Outcome, after_ms: int = 0, why: str = "") -> None:
        self.outcome = outcome
        self.after_ms = after_ms
        #: For the log: what the handler raised.
        self.why = why


class Handlers:
    """Belongs to one event loop; plain handlers run in threads of their own."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="escrowmq-handler")
        self.running = 0
        self._limit = LogLimit(log, burst=FAILURES_LOGGED_MAX, window_s=FAILURES_AGAIN_S)

    async def admit(self) -> None:
        """Wait until another message may be handled; ``handle`` gives the slot back."""
        await self._slots.acquire()

    async def handle(self, handler: MessageHandler, message: Received) -> Handled:
        """Run a handler to its end, within a slot that was admitted."""
        self.running += 1
        try:
            return await self._handle(handler, message)
        finally:
            self.running -= 1
            self._slots.release()

    async def _handle(self, handler: MessageHandler, message: Received) -> Handled:
        if message.problem:
            return self._failed("message_unreadable", message, message.problem, Outcome.GIVEN_UP)
        message.transactions.clear()
        timeout = asyncio.timeout(self._timeout_s)
        try:
            with suppress(AlreadyConsumed):
                async with timeout:
                    await self._call(handler, message)
            _check_committed(message)
        except RetryLater as later:
            return Handled(Outcome.AGAIN, later.after_ms, why=f"RetryLater: {later}")
        except GiveUp as given_up:
            # The consumer logs it with the topic that keeps the message.
            return Handled(Outcome.GIVEN_UP, why=f"GiveUp: {given_up}")
        except Left:
            return Handled(Outcome.LEFT)
        except BaseException as error:
            if is_for_this_task(error, is_async=handler.is_async):
                raise
            return self._handler_failed(message, error, is_late=timeout.expired())
        return Handled(Outcome.DONE)

    def _handler_failed(self, message: Received, error: BaseException, *, is_late: bool) -> Handled:
        if isinstance(error, EscrowError) and error.code == NOT_DECODABLE:
            # The body is to blame, not the code: a trace would tell nothing.
            return self._failed(NOT_DECODABLE, message, error.message)
        # After a timeout, the handler's thread goes on; its late end changes nothing.
        why = f"it took longer than {self._timeout_s:g} s" if is_late else str(error)
        return self._failed(
            "handler_failed", message, f"{type(error).__name__}: {why}", error=error
        )

    def _failed(
        self,
        event: str,
        message: Received,
        why: str,
        outcome: Outcome = Outcome.AGAIN,
        *,
        error: BaseException | None = None,
    ) -> Handled:
        facts = {
            "topic": message.topic,
            "message_id": message.message_id,
            "retries": message.retries,
            "why": why,
        }
        key = (message.topic, type(error).__name__)
        self._limit.warning(event, key, facts, exc_info=error)
        return Handled(outcome, why=why)

    async def _call(self, handler: MessageHandler, message: Received) -> None:
        token = current_message.set(message)
        try:
            if handler.is_async:
                await handler(message)
                return
            loop = asyncio.get_running_loop()
            context = copy_context()
            answer = await loop.run_in_executor(self._threads, context.run, handler, message)
            # A plain function around an async one, such as a decorator's, has done nothing yet.
            if inspect.isawaitable(answer):
                await answer
            elif inspect.isgenerator(answer) or inspect.isasyncgen(answer):
                raise RequestRefused("handler_illegal", YIELDS)
        finally:
            current_message.reset(token)

    def close(self) -> None:
        """Let the threads go; one that hangs is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_for_this_task(error: BaseException, *, is_async: bool) -> bool:
    """Whether an error of a user's function ends the task that called it, not the call alone."""
    if isinstance(error, Exception):
        return False
    if isinstance(error, asyncio.CancelledError):
        # A handler may wait for a task of its own that was cancelled.
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    # Out of a thread, sys.exit() would end the loop that other consumers and producers share.
    return is_async and threading.current_thread() is threading.main_thread()


def _check_committed(message: Received) -> None:
    """Refuse a handler that returned before its database transaction had committed."""
    for transaction in message.transactions:
        if transaction.is_uncommitted:
            raise RequestRefused(
                "handler_uncommitted",
                "the handler returned, and its consumer.transaction has not committed",
                state=transaction.state,
            )
