"""Waiting messages of one chunk that become visible soon, sorted by time."""

from __future__ import annotations

import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

_COMMITTED = int(State.COMMITTED)
_NO_ROWS = np.zeros(0, dtype=np.int64)


class ReleaseOrder:
    """Rows that were sorted once; rows that have changed since are skipped."""

    def __init__(self, base: int, next_at_ms: Rows, state: Rows, until_ms: int) -> None:
        """Sort the committed rows of these columns that become visible by ``until_ms``."""
        self._base = base
        waiting = np.flatnonzero((state == _COMMITTED) & (next_at_ms != NEVER))
        due = next_at_ms[waiting]
        is_later = due > until_ms
        #: When the first of the later rows becomes visible.
        self.rest_from_ms = int(due[is_later].min(initial=NEVER))
        soon, due = waiting[~is_later], due[~is_later]
        # A stable sort keeps rows of the same time in the order of their half offsets.
        order = np.argsort(due, kind="stable")
        self._at, self._due = soon[order], due[order]

    @property
    def from_ms(self) -> int:
        """No sorted row becomes visible before this."""
        return int(self._due[0]) if len(self._due) else NEVER

    def first(self, next_at_ms: Rows, state: Rows, now_ms: int, limit: int) -> tuple[Rows, Rows]:
        """Return the first half offsets to make visible now, and their times.

        The columns are the current ones, so rows that have changed are recognized.
        """
        while len(self._at):
            at, due = self._at[:limit], self._due[:limit]
            # Rows that were released or rescheduled no longer wait for this time.
            is_waiting = (next_at_ms[at] == due) & (state[at] == _COMMITTED)
            if is_waiting.all():
                count = int(np.searchsorted(due, now_ms, side="right"))
                return self._base + at[:count], due[:count]
            rest_at, rest_due = self._at[limit:], self._due[limit:]
            if is_waiting.any():
                rest_at = np.concatenate((at[is_waiting], rest_at))
                rest_due = np.concatenate((due[is_waiting], rest_due))
            self._at, self._due = rest_at, rest_due
        return _NO_ROWS, _NO_ROWS


NO_RELEASES = ReleaseOrder(0, _NO_ROWS, _NO_ROWS, 0)
