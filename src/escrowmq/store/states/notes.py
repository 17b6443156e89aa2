"""Half offsets of what changed, noted when a record is applied, until a state store takes it."""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.store.states.state_rows import rows_at
from escrowmq.transaction import records as kinds
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.state_store import are_undecided
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.store import Store
    from escrowmq.transaction.core import Where

BATCH_ROWS = 16_384
"""Rows of each kind in a batch: a few milliseconds for the event loop."""
NOTES_MAX = 1_000_000
"""Noted decisions, and noted checks, beyond which the state store is made equal as a whole."""
_NOTE = 5


class StateNotes:
    """Notes about one store. New rows need none: they follow those that were handed over."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Of each decided range: first row, rows, frame, whether the first one is a head, state.
        self._decided = array("q")
        self._checked: dict[int, None] = {}

    def __len__(self) -> int:
        return self.decisions + len(self._checked)

    @property
    def decisions(self) -> int:
        """Noted decisions."""
        return len(self._decided) // _NOTE

    @property
    def are_too_many(self) -> bool:
        """Whether there are so many notes that comparing everything costs less."""
        return self.decisions > NOTES_MAX or len(self._checked) > NOTES_MAX

    def clear(self) -> None:
        """Forget all notes."""
        self._decided, self._checked = array("q"), {}

    def listen(self, appliers: dict[type[kinds.Record], Callable[[Any, Where], None]]) -> None:
        """Wrap these functions, so that the records that they apply are noted from now on."""
        notes: dict[type[kinds.Record], Callable[[Any, Where], None]] = {
            kinds.Decided: self._note_decided,
            kinds.BatchDecided: self._note_batch,
            kinds.DecidedMany: self._note_many,
            kinds.Asked: lambda record, _: self._note_checks(record.head, 1),
            kinds.Parked: self._note_moved,
            kinds.Resumed: self._note_moved,
        }
        for kind, note in notes.items():
            appliers[kind] = partial(_applied_and_noted, appliers[kind], note)

    def _note_decided(self, record: kinds.Decided, where: Where) -> None:
        for first, count in record.ranges:
            is_head = first == record.head
            self._decided.extend((first, count, where.frame, is_head, record.state))

    def _note_batch(self, record: kinds.BatchDecided, where: Where) -> None:
        heads = set(record.heads)
        for first, count in record.ranges:
            self._decided.extend((first, count, where.frame, first in heads, State.COMMITTED))

    def _note_many(self, record: kinds.DecidedMany, where: Where) -> None:
        for packed, state in (
            (record.committed, State.COMMITTED),
            (record.rolled_back, State.ROLLED_BACK),
        ):
            rows = np.frombuffer(packed, dtype=np.int64)
            notes = np.empty((len(rows), _NOTE), dtype=np.int64)
            notes[:, 0], notes[:, 1:] = rows, (1, where.frame, 1, state)
            self._decided.frombytes(notes.tobytes())

    def _note_moved(self, record: kinds.Parked | kinds.Resumed, _: Where) -> None:
        for first, count in self._store.core.ranges_of(record.head):
            self._note_checks(first, count)

    def _note_checks(self, first: int, count: int) -> None:
        self._checked.update(dict.fromkeys(range(first, first + count)))

    def take_decided(self, known: int) -> Rows:
        """Return decided rows below ``known``; the others are handed over with their decision."""
        notes = np.array(self._decided[: _NOTE * BATCH_ROWS], dtype=np.int64).reshape(-1, _NOTE)
        fits = int(np.searchsorted(np.cumsum(notes[:, 1]), 4 * BATCH_ROWS, side="right"))
        notes = notes[: max(fits, 1)]
        del self._decided[: _NOTE * len(notes)]
        firsts, counts = notes[:, 0], notes[:, 1]
        starts = np.cumsum(counts) - counts
        half_offsets = np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))
        rows = rows_at(self._store, half_offsets)
        # A row may have left memory; then the note has all that matters.
        rows["log_offset"][rows["size"] == 0] = -1
        rows["op_offset"] = np.repeat(notes[:, 2], counts)
        rows["state"] = np.repeat(notes[:, 4], counts)
        rows["next_at_ms"], rows["is_head"] = NEVER, False
        rows["is_head"][starts] = notes[:, 3] == 1
        return rows[half_offsets < known]

    def take_checked(self, known: int) -> Rows:
        """Return undecided rows below ``known`` whose checks changed."""
        taken = list(self._checked)[:BATCH_ROWS]
        for row in taken:
            del self._checked[row]
        rows = rows_at(self._store, np.array(taken, dtype=np.int64))
        is_open = are_undecided(rows["state"]) & (rows["size"] > 0)
        return rows[is_open & (rows["half_offset"] < known)]


def _applied_and_noted(
    apply: Callable[[Any, Where], None],
    note: Callable[[Any, Where], None],
    record: kinds.Record,
    where: Where,
) -> None:
    apply(record, where)
    note(record, where)
