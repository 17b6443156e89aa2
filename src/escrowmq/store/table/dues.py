"""Back-checks that are due, and whether any came due since the last look.

A look at a million undecided transactions takes milliseconds. So each chunk remembers the result of
its last look, and the earliest time at which another look may find more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.store.table.chunk import Checks
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.table.state_table import StateTable
    from escrowmq.store.table.survivor_columns import KeptRows
    from escrowmq.transaction.memory.names import Names


@dataclass(slots=True, eq=False)
class Dues:
    """Due back-checks of one store."""

    _table: StateTable
    _names: Names
    #: Origins of Spark sinks, among the origins below ``_named``.
    _sinks: list[int] = field(default_factory=list)
    _named: int = 0
    #: The last look saw every check that was due by this time.
    looked_at_ms: int = 0
    _late_at_ms: int = 0

    def may_be_news(self, now_ms: int) -> bool:
        """Whether a look now may find a check that the last look did not."""
        return self._unseen_from_ms() <= max(now_ms, self.looked_at_ms)

    def _unseen_from_ms(self) -> int:
        in_chunks = [chunk.check_from_ms for chunk in self._table.chunks.values()]
        return min([self._table.survivors.check_from_ms, *in_chunks])

    def look(self, now_ms: int) -> Checks:
        """Count what is undecided, and what is due by ``looked_at_ms``: now, or a moment later.

        A check that was added since the last look, but was due before it, counts as due only now.
        Otherwise a caller that knows all checks due at the last look would never learn of it.
        """
        now_ms = max(now_ms, self.looked_at_ms)
        if self._unseen_from_ms() <= self.looked_at_ms:
            now_ms = self._late_at_ms = max(now_ms, self.looked_at_ms + 1)
        self.looked_at_ms = now_ms
        sinks = self._sink_origins()
        found = self._of_survivors(now_ms, sinks)
        for chunk in self._table.chunks.values():
            seen = chunk.look_at_checks(now_ms, sinks)
            found.due += seen.due
            found.newest_due_at_ms = max(found.newest_due_at_ms, seen.newest_due_at_ms)
            found.next_due_at_ms = min(found.next_due_at_ms, seen.next_due_at_ms)
            found.undecided += seen.undecided
            found.sink_attempts += seen.sink_attempts
        found.newest_due_at_ms = max(found.newest_due_at_ms, self._late_at_ms)
        return found

    def _of_survivors(self, now_ms: int, sinks: Rows) -> Checks:
        table = self._table
        times = _check_times(table.survivors.columns.all())
        next_at_ms = int(times[times > now_ms].min(initial=NEVER))
        table.survivors.check_from_ms = next_at_ms
        # Survivors of a chunk that is about to leave memory are counted in the chunk.
        kept = table.kept_rows()
        times = _check_times(kept)
        is_head = times != NEVER
        due = times[times <= now_ms]
        return Checks(
            due=len(due),
            newest_due_at_ms=int(due.max(initial=0)),
            next_due_at_ms=next_at_ms,
            undecided=int(np.count_nonzero(is_head)),
            sink_attempts=int(np.count_nonzero(np.isin(kept.view("origin")[is_head], sinks))),
        )

    def _sink_origins(self) -> Rows:
        origins = self._names.origins
        new = range(self._named, origins.end)
        self._sinks = [number for number in self._sinks if number in origins.named]
        self._sinks += [number for number in new if origins[number].group.startswith(GROUP_PREFIX)]
        self._named = origins.end
        return np.array(self._sinks, dtype=np.uint32)


def _check_times(kept: KeptRows) -> Rows:
    """Return when each row's next check is due; NEVER for rows that are not prepared heads."""
    is_undecided = kept.view("state") == State.PREPARED
    times: Rows = np.where(is_undecided, kept.view("next_at_ms"), NEVER)
    return times
