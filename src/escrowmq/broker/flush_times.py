"""How long flushes take: all of them by size, and the last thousand as they were."""

from __future__ import annotations

from collections import deque

from escrowmq.broker.counting import FLUSH_BOUNDS, Histogram

KEPT = 1_000

QUICK_S = 0.000_3
"""A flush that is over so soon is not worth another thread."""

SLOW_S = 0.001
"""A flush that takes longer counts as if it took so long: one that stalls does not tell much."""

TAKEN_INTO_ACCOUNT = 16


class FlushTimes(Histogram):
    """In seconds."""

    def __init__(self) -> None:
        super().__init__(FLUSH_BOUNDS)
        self._last: deque[float] = deque(maxlen=KEPT)
        #: A moving average.
        self._usual_s = SLOW_S

    def add(self, value: float, count: int = 1) -> None:
        """Note how long a flush took."""
        super().add(value, count)
        self._last.append(value)
        self._usual_s += (min(value, SLOW_S) - self._usual_s) / TAKEN_INTO_ACCOUNT

    @property
    def are_quick(self) -> bool:
        """Whether the last ones were over so soon that the next one can be waited for."""
        return self._usual_s < QUICK_S

    def quantile_ms(self, part: float) -> float:
        """How long so large a part of the last ones took at most; 0 if there was none."""
        ordered = sorted(self._last)
        if not ordered:
            return 0.0
        place = min(int(part * len(ordered)), len(ordered) - 1)
        return round(ordered[place] * 1_000, 3)
