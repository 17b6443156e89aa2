"""Survivors: rows that outlived their chunk, for which the files are out of date.

When a chunk leaves memory, its needed rows stay here. They and their later changes, even the
decision, stay until retention deletes the chunk's file.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from escrowmq.store.table.state_files import SavedSurvivors, Survivor
from escrowmq.store.table.survivor_columns import SurvivorColumns
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.transaction.table import Half


class Survivors:
    """A small map of rows, found by half offset, log offset and transaction id."""

    def __init__(self) -> None:
        self.rows: dict[int, Half] = {}
        self.columns = SurvivorColumns()
        self.has_changed = False
        #: Times at which committed rows become visible, and half offsets; some may be outdated.
        self._releases: list[tuple[int, int]] = []
        self._are_releases_sorted = True
        #: The snapshot that a checkpoint is writing, if one is.
        self._saving: SavedSurvivors | None = None
        #: Stored bytes of the needed rows.
        self.needed_bytes = 0
        #: Lower bound of the time at which the first check is due that the last look did not see.
        self.check_from_ms = NEVER
        self._row_by_log_offset: dict[int, int] = {}
        self._hash_by_row: dict[int, int] = {}
        self.rows_by_hash: dict[int, list[int]] = {}
        #: The rows, sorted; None when they must be sorted again.
        self._order: list[int] | None = None

    def keep(self, half: Half, id_hash: int) -> None:
        """Add or replace a row."""
        row = half.half_offset
        known = self.rows.get(row)
        if known is None:
            self._row_by_log_offset[half.log_offset] = row
            self._hash_by_row[row] = id_hash
            self.rows_by_hash.setdefault(id_hash, []).append(row)
            self._order = None
        self._set(known, half)

    def _set(self, known: Half | None, half: Half) -> None:
        if known is not None and known.is_needed:
            self.needed_bytes -= known.size
        if half.is_needed:
            self.needed_bytes += half.size
        if self._saving is not None:
            self._saving.note(half.half_offset, known)
        self.rows[half.half_offset] = half
        self.columns.set(half)
        self._expect(half)
        self.has_changed = True

    def change(self, row: int, **fields: Any) -> None:  # noqa: ANN401 - fields of Half
        """Set some fields of a row, if it is here."""
        half = self.rows.get(row)
        if half is not None:
            self._set(half, msgspec.structs.replace(half, **fields))

    def _expect(self, half: Half) -> None:
        if half.state is State.COMMITTED:
            if half.next_at_ms != NEVER:
                self._releases.append((half.next_at_ms, half.half_offset))
                self._are_releases_sorted = False
        elif half.state is State.PREPARED:
            self.check_from_ms = min(self.check_from_ms, half.next_at_ms)

    def next_releases(self, now_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return the first committed rows to make visible now: their times and half offsets."""
        if not self._are_releases_sorted:
            # The list is nearly sorted, which this sort handles fast.
            self._releases.sort()
            self._are_releases_sorted = True
        found: dict[tuple[int, int], None] = {}
        looked = 0
        for looked, (at_ms, row) in enumerate(self._releases):  # noqa: B007 - used after the loop
            if at_ms > now_ms or len(found) == limit:
                break
            half = self.rows.get(row)
            if half is not None and half.state is State.COMMITTED and half.next_at_ms == at_ms:
                found[at_ms, row] = None
        else:
            looked = len(self._releases)
        if len(found) < looked:
            self._releases[:looked] = found
        return list(found)

    def between(self, start: int, end: int) -> list[int]:
        """Return the rows in ``[start, end)``, sorted."""
        if self._order is None:
            rows = self.columns.all().half_offsets()
            # The rows are nearly sorted, which a stable sort handles fast.
            self._order = np.sort(rows[rows >= 0], kind="stable").tolist()
        return self._order[bisect_left(self._order, start) : bisect_left(self._order, end)]

    def row_at(self, log_offset: int) -> int | None:
        """Return the row that was first stored at exactly this log offset."""
        return self._row_by_log_offset.get(log_offset)

    def forget(self, rows: Iterable[int], row_start: int, log_offset: int) -> None:
        """Drop those of these rows that are not needed and are in no file and not in the log."""
        gone = [
            half
            for half in map(self.rows.get, rows)
            if half is not None
            and half.half_offset < row_start
            and max(half.op_offset, half.location) < log_offset
            and not half.is_needed
        ]
        if not gone:
            return
        assert self._saving is None, "no row goes while all are saved"
        self._order = None
        self.has_changed = True
        by_hash: dict[int, set[int]] = {}
        for half in gone:
            row = half.half_offset
            del self.rows[row], self._row_by_log_offset[half.log_offset]
            self.columns.remove(row)
            by_hash.setdefault(self._hash_by_row.pop(row), set()).add(row)
        # Filter once per hash: messages without an id share one hash, and may be very many.
        for id_hash, its_gone in by_hash.items():
            left = [row for row in self.rows_by_hash[id_hash] if row not in its_gone]
            if left:
                self.rows_by_hash[id_hash] = left
            else:
                del self.rows_by_hash[id_hash]

    def to_save(self) -> SavedSurvivors | None:
        """Return a snapshot of all rows; None if nothing changed since the last one."""
        if not self.has_changed:
            return None
        self.has_changed = False
        self._saving = SavedSurvivors(self.rows, self._hash_by_row)
        return self._saving

    def saved(self) -> None:
        """Note that a file holds the snapshot."""
        self._saving = None

    def load(self, saved: Iterable[Survivor]) -> None:
        """Load the rows of a file."""
        for survivor in saved:
            self.keep(survivor.half, survivor.id_hash)
        self.has_changed = False
