"""Finds the waiting messages that become visible next, over all rows of the state table.

Messages become visible in the order of their times; those with the same time, in the order of their
half offsets. Each chunk sorts the rows that become visible within ``LOOKAHEAD_MS`` and remembers
when it must sort again. So a slice of a large backlog only merges sorted rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.records import NEVER

if TYPE_CHECKING:
    from escrowmq.store.table.row_places import RowPlaces

LOOKAHEAD_MS = 1_000
"""How far ahead a chunk is sorted; each sort reads all of its rows."""


class Releases:
    """Finds the messages of one state table that become visible next."""

    def __init__(self, table: RowPlaces) -> None:
        self._table = table

    def sort_one(self, now_ms: int) -> bool:
        """Sort one chunk in which rows have come due; return False when every chunk is sorted.

        Each call sorts one chunk, because sorting a million overdue messages would hold the event
        loop too long.
        """
        for chunk in self._table.chunks.values():
            if chunk.release_from_ms <= now_ms:
                chunk.sort_releases(now_ms + LOOKAHEAD_MS)
                return True
        return False

    def first(self, now_ms: int, limit: int) -> list[int]:
        """Return the first committed rows to make visible now. Every chunk must be sorted."""
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
        # Needed rows of a chunk that is about to leave memory are survivors, too.
        return list(dict.fromkeys(rows[order].tolist()))[:limit]
