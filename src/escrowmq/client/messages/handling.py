"""Running users' handlers: a limited number at a time, each with a definite outcome.

A handler that returns has consumed the message. A handler that raises, exceeds its timeout, or
returns before its ``consumer.transaction`` has committed, has failed: the broker is asked to
deliver the message again later, and after the last retry it becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.model.log_limit import LogLimit

if TYPE_CHECKING:
    from escrowmq.client.messages.body_reading import MessageHandler
    from escrowmq.client.messages.messages import Received

log = event_log(__name__)

#: Maximum number of failures of each kind and topic that are logged in full, per minute.
FAILURES_LOGGED_MAX = 10
FAILURES_AGAIN_S = 60.0

NOT_DECODABLE = "body_not_decodable"
YIELDS = "a handler must return; a generator does nothing when it is called"

#: The message of the running handler.
current_message: ContextVar[Received] = ContextVar("escrowmq_message")


class RetryLater(Exception):
    """Raised by a handler to choose when its message is delivered again."""

    def __init__(self, after_ms: int) -> None:
        super().__init__(f"again after {after_ms} ms")
        if not isinstance(after_ms, int | float):
            raise TypeError(f"after_ms is a number, not a {type(after_ms).__name__}")
        self.after_ms = int(after_ms)


class GiveUp(Exception):
    """Raised by a handler that can never handle its message: it becomes a dead letter at once."""


class Left(Exception):
    """Raised if no handler or loop takes the message: it stays unconsumed."""


class AlreadyConsumed(RequestRefused):
    """The message was consumed before, in a transaction that committed."""


class HandlerOutcome(Enum):
    """Outcome of one handler call."""

    DONE = auto()
    #: Deliver the message again, after the handler's wait or one that the broker chooses.
    AGAIN = auto()
    GIVEN_UP = auto()
    #: Not taken: the message stays open, and comes again when the group resumes at its offset.
    LEFT = auto()


class Handled(NamedTuple):
    """An outcome, its reason, and the wait that the handler chose (0: the broker chooses)."""

    outcome: HandlerOutcome
    after_ms: int = 0
    #: The handler's error, for the log.
    why: str = ""


class HandlerRunner:
    """Runner of handlers, for one event loop. Sync handlers run in its own threads."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="escrowmq-handler")
        self._limit = LogLimit(log, burst=FAILURES_LOGGED_MAX, window_s=FAILURES_AGAIN_S)

    async def admit(self) -> None:
        """Wait for a free slot; ``handle`` releases it."""
        await self._slots.acquire()

    async def handle(self, handler: MessageHandler, message: Received) -> Handled:
        """Run a handler to its end in the slot that ``admit`` has reserved; release the slot."""
        try:
            return await self._handle(handler, message)
        finally:
            self._slots.release()

    async def _handle(self, handler: MessageHandler, message: Received) -> Handled:
        if message.problem:
            return self._failed(
                "message_unreadable", message, message.problem, HandlerOutcome.GIVEN_UP
            )
        message.transactions.clear()
        timeout = asyncio.timeout(self._timeout_s)
        try:
            with suppress(AlreadyConsumed):
                async with timeout:
                    await self._call(handler, message)
            _check_committed(message)
        except RetryLater as later:
            return Handled(HandlerOutcome.AGAIN, later.after_ms, why=f"RetryLater: {later}")
        except GiveUp as given_up:
            # The consumer logs this, with the topic that keeps the message.
            return Handled(HandlerOutcome.GIVEN_UP, why=f"GiveUp: {given_up}")
        except Left:
            return Handled(HandlerOutcome.LEFT)
        except BaseException as error:
            if is_for_this_task(error, is_async=handler.is_async):
                raise
            return self._handler_failed(message, error, is_late=timeout.expired())
        return Handled(HandlerOutcome.DONE)

    def _handler_failed(self, message: Received, error: BaseException, *, is_late: bool) -> Handled:
        if isinstance(error, EscrowError) and error.code == NOT_DECODABLE:
            # The cause is the body, not the handler's code, so a traceback would not help.
            return self._failed(NOT_DECODABLE, message, error.message)
        # After a timeout, the thread of a sync handler keeps running; its result is ignored.
        why = f"it took longer than {self._timeout_s:g} s" if is_late else str(error)
        return self._failed(
            "handler_failed", message, f"{type(error).__name__}: {why}", error=error
        )

    def _failed(
        self,
        event: str,
        message: Received,
        why: str,
        outcome: HandlerOutcome = HandlerOutcome.AGAIN,
        *,
        error: BaseException | None = None,
    ) -> Handled:
        facts = {
            "topic": message.topic,
            "message_id": message.message_id,
            "retries": message.retries,
            "why": why,
        }
        self._limit.warning(event, (message.topic, type(error).__name__), facts, exc_info=error)
        return Handled(outcome, why=why)

    async def _call(self, handler: MessageHandler, message: Received) -> None:
        token = current_message.set(message)
        try:
            if handler.is_async:
                await handler(message)
                return
            loop = asyncio.get_running_loop()
            answer = await loop.run_in_executor(self._threads, copy_context().run, handler, message)
            # A sync wrapper around an async handler, such as a decorator, returns its coroutine.
            if inspect.isawaitable(answer):
                await answer
            elif inspect.isgenerator(answer) or inspect.isasyncgen(answer):
                raise RequestRefused("handler_illegal", YIELDS)
        finally:
            current_message.reset(token)

    def close(self) -> None:
        """Shut the threads down without waiting; a hanging thread is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def is_for_this_task(error: BaseException, *, is_async: bool) -> bool:
    """Whether an error of a user's function must end the calling task, not only the call."""
    if isinstance(error, Exception):
        return False
    if isinstance(error, asyncio.CancelledError):
        # The handler may have awaited its own task, and that task was cancelled.
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    # sys.exit() in a thread must not end the loop that other consumers and producers share.
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
