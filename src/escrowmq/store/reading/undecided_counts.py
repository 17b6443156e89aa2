"""Counts the transactions in the state table that wait for a decision, and finds the oldest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.store import Store
    from escrowmq.store.table.chunk import Chunk
    from escrowmq.store.table.survivor_columns import KeptRows


class UndecidedCounts(msgspec.Struct, kw_only=True):
    """Counts of transactions that are not decided."""

    #: Prepared transactions, which rounds of the broker or a pipeline may still check.
    undecided: int = 0
    #: When the oldest of them was stored; None if there is none.
    oldest_undecided_at_ms: int | None = None
    #: Parked transactions, which are not checked any more.
    parked: int = 0


def standing(store: Store) -> UndecidedCounts:
    """Count undecided transactions; chunks in which everything is decided are skipped."""
    found = UndecidedCounts()
    for block in store.table.needed_blocks():
        _look(found, block)
    if found.parked:
        # Later requests of a transaction do not count as transactions.
        found.parked -= _parked_of(store, np.array(list(store.core.heads), dtype=np.int64))
    return found


def _look(found: UndecidedCounts, block: Chunk | KeptRows) -> None:
    state = block.view("state")
    # Exactly one row of a prepared transaction is ever due.
    waits = (state == State.PREPARED) & (block.view("next_at_ms") != NEVER)
    count = int(np.count_nonzero(waits))
    if count:
        found.undecided += count
        at_ms = int(block.view("stored_at_ms")[waits].min())
        oldest = found.oldest_undecided_at_ms
        found.oldest_undecided_at_ms = at_ms if oldest is None else min(oldest, at_ms)
    is_parked = state == State.PARKED
    if is_parked.any():
        found.parked += int(np.count_nonzero(is_parked & (block.view("part") >= FIRST)))


def _parked_of(store: Store, rows: Rows) -> int:
    """Return how many of these rows are parked."""
    held = store.table.columns(rows)
    parked = int(np.count_nonzero(held.is_here & (held.state == State.PARKED)))
    elsewhere = map(store.core.row, rows[~held.is_here].tolist())
    return parked + sum(half.state is State.PARKED for half in elsewhere)
