"""Questions to the store, which wait to be answered between two batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

REST = 9
"""While somebody is sending, the next question waits so many times as long as the last one took."""


class Questions:
    """In the order in which they were asked.  Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, go_on: Callable[[], None]) -> None:
        self._loop = loop
        #: To be called after a rest.
        self._go_on = go_on
        self._waiting: deque[Callable[[], None]] = deque()
        self._rests_until = 0.0
        self._is_resting = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def are_ready(self) -> bool:
        """Whether one may be answered."""
        return bool(self._waiting) and not self._is_resting

    def put(self, question: Callable[[], None]) -> None:
        """Have it asked when its turn comes."""
        self._waiting.append(question)

    def answer_one(self, *, is_beside_senders: bool) -> None:
        """Answer the first, or rest before it."""
        if is_beside_senders and self._loop.time() < self._rests_until:
            self._is_resting = True
            self._loop.call_at(self._rests_until, self._end_rest)
            return
        began = perf_counter()
        self._waiting.popleft()()
        self._rests_until = self._loop.time() + REST * (perf_counter() - began)

    def answer_all(self) -> None:
        """Answer all that wait, at once."""
        while self._waiting:
            self._waiting.popleft()()

    def _end_rest(self) -> None:
        self._is_resting = False
        self._go_on()
