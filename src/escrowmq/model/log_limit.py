"""Rate limit for log events, such as the same failure every second."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from escrowmq.model.event_log import EventLog

KEYS_MAX = 1_024
"""Maximum number of remembered keys; when it is reached, all counts start again."""


class _Window(msgspec.Struct):
    began_s: float
    logged: int = 0
    unlogged: int = 0


class LogLimit:
    """Logs at most ``burst`` lines of each event and key per ``window_s`` and drops the others.

    The first line after dropped ones says in ``unlogged`` how many there were.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        burst: int,
        window_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._burst = burst
        self._window_s = window_s
        self._now_s = now_s
        self._windows: dict[tuple[str, Hashable], _Window] = {}

    def warning(self, event: str, key: Hashable, facts: dict[str, Any], **more: Any) -> None:  # noqa: ANN401 - as logging declares it
        """Log the event, unless its key has used up its burst."""
        now_s = self._now_s()
        if len(self._windows) >= KEYS_MAX and (event, key) not in self._windows:
            self._windows.clear()
        window = self._windows.setdefault((event, key), _Window(now_s))
        if now_s - window.began_s >= self._window_s:
            window.began_s, window.logged = now_s, 0
        if window.logged >= self._burst:
            window.unlogged += 1
            return
        window.logged += 1
        if window.unlogged:
            facts = {**facts, "unlogged": window.unlogged}
            window.unlogged = 0
        # Log the caller's position, one frame up.
        self._log.warning(event, extra=facts, stacklevel=2, **more)

    def forget(self, event: str, key: Hashable) -> bool:
        """Forget the counts of a key whose problem has ended; return whether there were any."""
        return self._windows.pop((event, key), None) is not None
