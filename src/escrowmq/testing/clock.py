"""A clock that a test moves by hand."""

from __future__ import annotations


class ManualClock:
    """A ``Clock`` that stands still until it is told otherwise."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._now_ms

    def advance(self, *, ms: int = 0, seconds: int = 0) -> None:
        """Let time pass."""
        self._now_ms += ms + 1_000 * seconds

    def set(self, ms: int) -> None:
        """Jump to an instant, backwards too: real clocks are set back."""
        self._now_ms = ms
