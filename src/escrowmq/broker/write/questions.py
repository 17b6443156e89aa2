"""Queue of questions to the store, which the writer answers between two batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol, TypeVar

REST = 9
"""While clients are sending, each question waits this many times as long as the last one took."""


T = TypeVar("T")


class AsksBetween(Protocol):
    """The part of the writer that runs questions."""

    def between(self, work: Callable[[], None]) -> None:
        """Run a question soon, between two batches."""


class Questions:
    """Questions in order of arrival. Use it from one event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]) -> None:
        self._loop = loop
        #: Called after a rest.
        self._go_on = go_on
        self._waiting: deque[Callable[[], None]] = deque()
        self._rests_until = 0.0
        self._is_resting = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def are_ready(self) -> bool:
        """Whether a question may be answered now."""
        return bool(self._waiting) and not self._is_resting

    def put(self, question: Callable[[], None]) -> None:
        """Add a question at the end of the queue."""
        self._waiting.append(question)

    def answer_one(self, *, is_beside_senders: bool) -> None:
        """Answer the first question, or rest before it."""
        if is_beside_senders and self._loop.time() < self._rests_until:
            self._is_resting = True
            self._loop.call_at(self._rests_until, self._end_rest)
            return
        began = perf_counter()
        self._waiting.popleft()()
        self._rests_until = self._loop.time() + REST * (perf_counter() - began)

    def answer_all(self) -> None:
        """Answer all waiting questions at once."""
        while self._waiting:
            self._waiting.popleft()()

    def _end_rest(self) -> None:
        self._is_resting = False
        self._go_on()


async def ask_between(writer: AsksBetween, question: Callable[[], T]) -> T:
    """Return the answer to a question that the writer runs between two batches."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def run() -> None:
        if answer.done():
            return
        try:
            answer.set_result(question())
        except Exception as error:  # noqa: BLE001 - the caller gets it
            answer.set_exception(error)

    writer.between(run)
    return await answer
