"""Time is an argument: whoever owns a loop reads a Clock and passes the number down."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the shell reads the time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000
