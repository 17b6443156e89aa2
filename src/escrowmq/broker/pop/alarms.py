"""Alarms: when a message in flight of some queue is visible again, so that waiting polls are tried.

There is one alarm for each group and queue, at the earliest time that was set.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

Key = tuple[str, int]
"""Group and queue number."""


class Alarms:
    """Times, by group and queue number."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._at_ms: dict[Key, int] = {}

    def set(self, group: str, number: int, at_ms: int) -> None:
        """Set an alarm, unless an earlier one is set."""
        key = (group, number)
        known = self._at_ms.get(key)
        if known is None or at_ms < known:
            self._at_ms[key] = at_ms
            heapq.heappush(self._heap, (at_ms, key))

    def due(self, now_ms: int) -> Iterator[Key]:
        """Yield the groups and queues whose alarm is due, and remove it."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._heap)
            # Skip a time that an earlier alarm of the same queue has replaced.
            if self._at_ms.get(key) == at_ms:
                del self._at_ms[key]
                yield key
