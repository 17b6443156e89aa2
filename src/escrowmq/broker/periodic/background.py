"""Periodic background work of a broker, and its failures.

Work that fails is tried again, and each failure in a row doubles the pause. The status shows the
last error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from escrowmq.model.event_log import event_log

log = event_log(__name__)

BACKOFF_S_MAX = 60.0

PeriodicWork = Callable[[], Awaitable[None]]


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Work that has failed at least once since the broker started."""

    work: str
    #: Failures in total, and since the last success (0 if the work succeeds again).
    failures: int
    failures_in_a_row: int
    last_error: str
    last_failed_at_ms: int


class PeriodicTasks:
    """Runs periodic work. Use it from one event loop only."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: dict[str, Failed] = {}
        #: Set at shutdown, after which failures are expected and not reported.
        self.is_over = False

    @property
    def failed(self) -> list[Failed]:
        """All work that has failed since the broker started."""
        return list(self._failed.values())

    def every(self, seconds: float, name: str, work: PeriodicWork) -> None:
        """Run the work repeatedly, with this pause between two runs."""
        self._tasks.append(asyncio.ensure_future(self._repeat(seconds, name, work)))

    def stop(self) -> None:
        """Cancel all work."""
        self.is_over = True
        for task in self._tasks:
            task.cancel()

    async def _repeat(self, seconds: float, name: str, work: PeriodicWork) -> None:
        in_a_row = 0
        while True:
            await asyncio.sleep(pause_s(seconds, in_a_row))
            try:
                await work()
            except Exception as error:
                if self.is_over:
                    return
                in_a_row += 1
                self._note(name, in_a_row, error)
                # Log only the first failure in a row, so that a lasting one does not fill the log.
                if in_a_row == 1:
                    log.exception("background_failed", extra={"work": name})
            else:
                if in_a_row:
                    in_a_row = 0
                    self._failed[name] = msgspec.structs.replace(
                        self._failed[name], failures_in_a_row=0
                    )

    def _note(self, name: str, in_a_row: int, error: Exception) -> None:
        known = self._failed.get(name)
        self._failed[name] = Failed(
            work=name,
            failures=(known.failures if known else 0) + 1,
            failures_in_a_row=in_a_row,
            last_error=repr(error),
            last_failed_at_ms=self._now_ms(),
        )


def pause_s(seconds: float, failures_in_a_row: int) -> float:
    """Return the pause before the next run, in seconds."""
    # Without a bound on the exponent, a long row of failures would overflow the float.
    doubled: float = seconds * 2.0 ** min(failures_in_a_row, 20)
    return min(doubled, max(seconds, BACKOFF_S_MAX))
