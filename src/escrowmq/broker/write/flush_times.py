"""Flush times: a histogram of all, and the values of the last thousand."""

from __future__ import annotations

from collections import deque

from escrowmq.broker.state.counting import FLUSH_BOUNDS, Histogram

KEPT = 1_000

QUICK_S = 0.000_3
"""A flush faster than this is not worth another thread."""

SLOW_S = 0.001
"""Slower flushes enter the average as this value, so that one stall changes it little."""

TAKEN_INTO_ACCOUNT = 16


class FlushTimes(Histogram):
    """Flush times in seconds."""

    def __init__(self) -> None:
        super().__init__(FLUSH_BOUNDS)
        self._last: deque[float] = deque(maxlen=KEPT)
        #: Moving average.
        self._usual_s = SLOW_S

    def add(self, value: float, count: int = 1) -> None:
        """Note how long a flush took."""
        super().add(value, count)
        self._last.append(value)
        self._usual_s += (min(value, SLOW_S) - self._usual_s) / TAKEN_INTO_ACCOUNT

    @property
    def are_quick(self) -> bool:
        """Whether recent flushes were so fast that the event loop can wait for the next one."""
        return self._usual_s < QUICK_S

    def quantile_ms(self, part: float) -> float:
        """Return this quantile of the last flush times, or 0 if there was no flush."""
        ordered = sorted(self._last)
        if not ordered:
            return 0.0
        place = min(int(part * len(ordered)), len(ordered) - 1)
        return round(ordered[place] * 1_000, 3)
