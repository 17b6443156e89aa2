"""How long flushes take: the last thousand of them, for whoever asks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

KEPT = 1_000


class FlushTimes:
    """Appended to by whichever thread flushes, one at a time."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT)

    def timed(self, flush: Callable[[], None]) -> None:
        """Flush, and note how long it took if it succeeds."""
        began = time.perf_counter()
        flush()
        self._seconds.append(time.perf_counter() - began)

    def quantile_ms(self, part: float) -> float:
        """How long so large a part of them took at most; 0 if there was none."""
        ordered = sorted(self._seconds)
        if not ordered:
            return 0.0
        place = min(int(part * len(ordered)), len(ordered) - 1)
        return round(ordered[place] * 1_000, 3)
