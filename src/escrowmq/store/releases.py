"""Which waiting messages become visible next, over all rows of the state table.

Messages leave in the order of their times; those of the same time in the order of their half
offsets.  Each chunk sorts the rows that become visible within ``LOOKAHEAD_MS`` and remembers from
when on it must sort again, so that a slice of a large backlog only merges what is sorted already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.records import NEVER

if TYPE_CHECKING:
    from escrowmq.store.state_table import StateTable

LOOKAHEAD_MS = 1_000
"""Sorting a chunk reads all of its rows, so it is done for this much time at once."""


class Releases:
    """Belongs to one state table."""

    def __init__(self, table: StateTable) -> None:
        self._table = table

    def sort_one(self, now_ms: int) -> bool:
        """Sort a chunk in which rows have come due; False when every chunk is sorted.

        One at a time: with a million overdue messages, sorting all of them takes too long for the
        event loop.
        """
        for chunk in self._table.chunks.values():
            if chunk.release_from_ms <= now_ms:
                chunk.sort_releases(now_ms + LOOKAHEAD_MS)
                return True
        return False

    def first(self, now_ms: int, limit: int) -> list[int]:
        """The first committed rows to make visible now.  Every chunk must be sorted."""
        kept = self._table.survivors.next_releases(now_ms, limit)
        due = np.array([at_ms for at_ms, _ in kept], dtype=np.int64)
        rows = np.array([row for _, row in kept], dtype=np.int64)
        last_ms = NEVER
        for chunk in sorted(self._table.chunks.values(), key=lambda one: one.releases.from_ms):
            if chunk.releases.from_ms > min(now_ms, last_ms):
                break
            more_rows, more_due = chunk.next_releases(now_ms, limit)
            rows, due = np.concatenate((rows, more_rows)), np.concatenate((due, more_due))
            if len(rows) >= limit:
                last_ms = int(np.partition(due, limit - 1)[limit - 1])
        order = np.lexsort((rows, due))
        # A chunk that is about to leave and the map have the same rows.
        return list(dict.fromkeys(rows[order].tolist()))[:limit]
