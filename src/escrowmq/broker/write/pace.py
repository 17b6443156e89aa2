"""Paces the broker's own work while clients send messages, so that clients are served first."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter, thread_time

IN_USE_S = 0.1
"""Clients count as sending for this long after a message."""
FREE_MIN = 0.2
"""The smallest free share of the thread that the pause takes into account. Under any load, checks
and look-ups must keep up with what clients leave undecided."""
MEASURED_S = 0.02
"""The free share is measured over at least this long."""


class BackgroundPace:
    """Says how long work rests between two pieces. Use it from the event loop's thread only."""

    def __init__(
        self, now: Callable[[], float] = perf_counter, used: Callable[[], float] = thread_time
    ) -> None:
        self._now = now
        self._used = used
        self._sent_at = -math.inf
        self._measured_at = now(), used()
        self._waited_for_disk_s = 0.0
        self._free = 1.0

    def note_sent(self) -> None:
        """Note that a client sends a message."""
        self._sent_at = self._now()

    def note_flush(self, seconds: float) -> None:
        """Note a flush that the thread itself waited for: it could do nothing else meanwhile."""
        self._waited_for_disk_s += seconds

    @property
    def is_in_use(self) -> bool:
        """Whether clients are sending now, so that long work must be done in small pieces."""
        return self._now() - self._sent_at < IN_USE_S

    def rest_s(self, wanted_s: float) -> float:
        """Return the pause between two pieces of work; 0 while no client is sending.

        ``wanted_s`` is the pause on an idle thread. The less time the event loop's thread has left,
        the longer is the pause.
        """
        return wanted_s / max(self._measure(), FREE_MIN) if self.is_in_use else 0.0

    def _measure(self) -> float:
        """Return the share of time that the thread was free lately."""
        (before, used_before), now = self._measured_at, self._now()
        used = self._used() + self._waited_for_disk_s
        if now - before >= MEASURED_S:
            self._free = 1.0 - (used - used_before) / (now - before)
            self._measured_at = now, used
        return self._free
