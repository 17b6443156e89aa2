"""How long flushes take: all of them by size, and the last thousand as they were."""

from __future__ import annotations

from collections import deque

from escrowmq.broker.counting import FLUSH_BOUNDS, Histogram

KEPT = 1_000


class FlushTimes(Histogram):
    """In seconds."""

    def __init__(self) -> None:
        super().__init__(FLUSH_BOUNDS)
        self._last: deque[float] = deque(maxlen=KEPT)

    def add(self, value: float, count: int = 1) -> None:
        """Note how long a flush took."""
        super().add(value, count)
        self._last.append(value)

    def quantile_ms(self, part: float) -> float:
        """How long so large a part of the last ones took at most; 0 if there was none."""
        ordered = sorted(self._last)
        if not ordered:
            return 0.0
        place = min(int(part * len(ordered)), len(ordered) - 1)
        return round(ordered[place] * 1_000, 3)
