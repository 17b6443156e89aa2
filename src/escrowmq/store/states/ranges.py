"""Ranges of half offsets that a state store must have as the core has them.

The store's thread reads a range in slices, so that other work does not wait for a whole range. A
slice in which a row changed meanwhile is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.store.states.state_rows import origins_of, rows_between, with_filed
from escrowmq.transaction.state_store import StatePart, are_undecided

if TYPE_CHECKING:
    from escrowmq.store.store import Store
    from escrowmq.transaction.state_store import StateStore

SLICE_ROWS = 16_384
"""Rows of a range that the store's thread reads at once: a few milliseconds."""


class StateRanges:
    """Ranges that wait to be made equal, and what was read of the first of them."""

    def __init__(self, store: Store, states: StateStore) -> None:
        self._store = store
        self._states = states
        #: Starts of the ranges that are not equal yet.
        self.bases: list[int] = []
        #: What was read of the first of them, by first half offset.
        self._slices: dict[int, StatePart] = {}

    def begin(self, held: list[int]) -> None:
        """Let all ranges wait; the state store has records in ``held``."""
        self.bases, self._slices = self.all_bases(held), {}

    def all_bases(self, held: list[int]) -> list[int]:
        """Return the starts of all ranges to compare; the state store has records in ``held``."""
        size, table = self._states.part_rows, self._store.table
        bases = {base - base % size for base in held}
        for block in table.needed_blocks():
            rows = block.half_offsets()[are_undecided(block.view("state"))]
            bases.update(np.unique(rows - rows % size).tolist())
        last = max(table.end - 1, 0)
        return sorted({*bases, last - last % size})

    # Reading, in the store's thread.

    def part(self, base: int, *, with_files: bool = True) -> StatePart:
        """Return a range as the core has it."""
        return self._read(base, base + self._states.part_rows, with_files=with_files)

    def _read(self, first: int, end: int, *, with_files: bool) -> StatePart:
        # A broker that serves does not wait here for decided rows that have left memory.
        rows = rows_between(self._store, first, end, with_files=with_files)
        rows_end, origins = self._store.table.end, origins_of(self._store, rows)
        return StatePart(first=first, end=end, rows=rows, origins=origins, rows_end=rows_end)

    def read_on(self, *, with_files: bool) -> StatePart | None:
        """Read one more slice of the first range; return the range once all of it was read."""
        base, rows_end = self.bases[0], self._store.table.end
        end = base + self._states.part_rows
        starts = range(base, max(min(end, rows_end), base + 1), SLICE_ROWS)
        missing = [first for first in starts if first not in self._slices]
        for first in missing[:1]:
            slice_end = min(first + SLICE_ROWS, end)
            self._slices[first] = self._read(first, slice_end, with_files=with_files)
        if len(missing) > 1:
            return None
        slices = [part for _, part in sorted(self._slices.items())]
        self._slices = {}
        if len(self.bases) == 1 and rows_end > end:
            # New rows came meanwhile, in a range of their own.
            self.bases.append(end)
        return _joined(slices, end, rows_end)

    def forget_changed(self, changed: Rows) -> None:
        """Have the slices of a range read again in which rows changed meanwhile."""
        for first in list(self._slices):
            if np.any((changed >= first) & (changed < first + SLICE_ROWS)):
                del self._slices[first]

    def end_first(self) -> None:
        """Take out the first range, which is equal now."""
        del self.bases[0]

    # Making equal, in the state store's thread.

    def filled(self, part: StatePart) -> int:
        """Replace a part, with the rows that are only in files: the thread may wait for these."""
        rows = with_filed(self._store, part.rows, part.first, part.end)
        whole = msgspec.structs.replace(part, rows=rows, origins=origins_of(self._store, rows))
        return self._states.replace(whole)

    def verified(self, part: StatePart) -> int:
        """Replace a part by the rows in memory; if any differed, again with those in files."""
        differed = self._states.replace(part)
        if differed:
            self.filled(part)
        return differed


def _joined(slices: list[StatePart], end: int, rows_end: int) -> StatePart:
    origins = {number: origin for part in slices for number, origin in part.origins.items()}
    rows = np.concatenate([part.rows for part in slices])
    return StatePart(first=slices[0].first, end=end, rows=rows, origins=origins, rows_end=rows_end)
