"""When one kind of the pipeline's work last ran, and when it may run next.

Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

SETTLE = "settle"
COMPARE = "compare"
ARCHIVE = "archive"
UPKEEP = "upkeep"

#: The longest wait after repeated failures. The wait doubles with each failure.
FAILED_MS_MAX = 60_000


@dataclass(slots=True, kw_only=True)
class WorkRuns:
    """One kind of work: when it last ran, and how it ended."""

    interval_ms: int
    began_at_ms: int | None = None
    ended_at_ms: int | None = None
    failures: int = 0

    @property
    def is_running(self) -> bool:
        """Whether a run has begun and not ended."""
        return self.began_at_ms is not None and self.ended_at_ms is None

    def running_ms(self, now_ms: int) -> int:
        """How long the run under way has been running; 0 if there is none."""
        if self.began_at_ms is None or self.ended_at_ms is not None:
            return 0
        return now_ms - self.began_at_ms

    @property
    def took_ms(self) -> int:
        """How long the last run took; 0 if there was none, or while it runs."""
        if self.began_at_ms is None or self.ended_at_ms is None:
            return 0
        return self.ended_at_ms - self.began_at_ms

    def begin(self, now_ms: int) -> None:
        """Note the start of a run."""
        self.began_at_ms, self.ended_at_ms = now_ms, None

    def end(self, now_ms: int, *, is_failed: bool) -> None:
        """Note the end of a run."""
        self.ended_at_ms = now_ms
        self.failures = self.failures + 1 if is_failed else 0

    def after(self, wait_ms: int) -> int:
        """`wait_ms` after the last run began, or at once if there was none."""
        return 0 if self.began_at_ms is None else self.began_at_ms + wait_ms

    def next_at_ms(self, wait_ms: int) -> int:
        """`wait_ms` after the last run began, or later after failures."""
        if self.failures:
            doubled = self.interval_ms * 2 ** min(self.failures - 1, 20)
            wait_ms = max(wait_ms, min(doubled, max(FAILED_MS_MAX, self.interval_ms)))
        return self.after(wait_ms)
