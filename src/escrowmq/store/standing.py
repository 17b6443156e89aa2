"""How many transactions wait for a decision, and since when: a look over the state table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.store.chunk import Chunk
    from escrowmq.store.store import Store


class Standing(msgspec.Struct, kw_only=True):
    """What is not decided."""

    #: Transactions that somebody will be asked about.
    undecided: int = 0
    #: When the oldest half message of one of them was stored; None if there is none.
    oldest_undecided_at_ms: int | None = None
    #: Transactions that wait for a person.
    parked: int = 0


def standing(store: Store) -> Standing:
    """Count; chunks in which everything is decided are not looked at."""
    found = Standing()
    for half in store.table.kept():
        if half.state is State.PREPARED and half.next_at_ms != NEVER:
            _count(found, 1, half.stored_at_ms)
        elif half.state is State.PARKED and half.part & FIRST:
            found.parked += 1
    for chunk in store.table.chunks.values():
        if chunk.needed:
            _look(found, chunk)
    if found.parked:
        # The later requests of a transaction are no transactions of their own.
        later = (store.row(first) for first in store.core.heads)
        found.parked -= sum(half.state is State.PARKED for half in later)
    return found


def _look(found: Standing, chunk: Chunk) -> None:
    state = chunk.view("state")
    # Of an undecided transaction exactly one row is ever due.
    waits = (state == State.PREPARED) & (chunk.view("next_at_ms") != NEVER)
    count = int(np.count_nonzero(waits))
    if count:
        _count(found, count, chunk.stored_at_ms[int(np.argmax(waits))])
    is_parked = state == State.PARKED
    if is_parked.any():
        found.parked += int(np.count_nonzero(is_parked & (chunk.view("part") >= FIRST)))


def _count(found: Standing, count: int, at_ms: int) -> None:
    found.undecided += count
    oldest = found.oldest_undecided_at_ms
    found.oldest_undecided_at_ms = at_ms if oldest is None else min(oldest, at_ms)
