"""Columns of the survivors, so that counting them is as fast as counting a chunk's rows.

The map of survivors has an object for each row. A scan of 320,000 objects would hold the event loop
for 200 ms; over columns it takes 3 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.disk.rows import Rows
    from escrowmq.transaction.table import Half

_COLUMNS = np.dtype(
    [
        ("half_offset", "<i8"),
        ("stored_at_ms", "<i8"),
        ("next_at_ms", "<i8"),
        ("size", "<u4"),
        ("origin", "<u4"),
        ("queue", "<u4"),
        ("part", "<u2"),
        ("state", "u1"),
    ]
)
_SLOTS_MIN = 64
#: An empty slot looks like a row that is not needed.
_EMPTY = (-1, 0, NEVER, 0, 0, 0, 0, int(State.ROLLED_BACK))


class KeptRows:
    """Columns of the survivors, unordered; some slots may be empty."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def view(self, name: str) -> Rows:
        """Return one column of all rows."""
        found: Rows = self._rows[name]
        return found

    def half_offsets(self) -> Rows:
        """The row numbers."""
        return self.view("half_offset")

    @property
    def is_needed(self) -> Rows:
        """Which rows are prepared, parked, or committed but not yet visible."""
        state = self.view("state")
        is_undecided = (state == State.PREPARED) | (state == State.PARKED)
        needed: Rows = is_undecided | (
            (state == State.COMMITTED) & (self.view("next_at_ms") != NEVER)
        )
        return needed


class SurvivorColumns:
    """A slot for each survivor; slots of removed rows are reused."""

    def __init__(self) -> None:
        self._rows = np.zeros(_SLOTS_MIN, dtype=_COLUMNS)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def set(self, half: Half) -> None:
        """Add or replace a row."""
        slot = self._slots.get(half.half_offset)
        if slot is None:
            slot = self._slots[half.half_offset] = self._new_slot()
        self._rows[slot] = (
            half.half_offset,
            half.stored_at_ms,
            half.next_at_ms,
            half.size,
            half.origin,
            half.queue,
            half.part,
            half.state,
        )

    def remove(self, half_offset: int) -> None:
        """Empty the slot of a row."""
        slot = self._slots.pop(half_offset)
        self._rows[slot] = _EMPTY
        self._free.append(slot)

    def all(self) -> KeptRows:
        """Return every row as it is now."""
        return KeptRows(self._rows[: len(self._slots) + len(self._free)])

    def without(self, is_hidden: Rows) -> KeptRows:
        """Return a copy of all rows except these."""
        return KeptRows(self._rows[: len(is_hidden)][~is_hidden])

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._slots)
        if slot == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(slot, dtype=_COLUMNS)])
        return slot
