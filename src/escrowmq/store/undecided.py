"""Counts of what is held back, without looking at the rows one by one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.chunk import Chunk
    from escrowmq.store.rows import Rows
    from escrowmq.store.state_table import StateTable

_PREPARED = int(State.PREPARED)
_COMMITTED = int(State.COMMITTED)


class HeldBack(msgspec.Struct, frozen=True):
    """Messages that no consumer sees yet, by the number of their queue."""

    #: Half messages of undecided transactions.
    undecided: Counter[int]
    #: Messages that wait for their time.
    timed: Counter[int]


def prepared_by_origin(table: StateTable) -> Counter[int]:
    """How many transactions of each origin may be checked."""
    # Only the head of a transaction is ever due.
    counts = Counter(
        half.origin
        for half in table.kept()
        if half.state is State.PREPARED and half.next_at_ms != NEVER
    )
    for chunk in table.chunks.values():
        if chunk.needed:
            is_head = (chunk.view("state") == _PREPARED) & (chunk.view("next_at_ms") != NEVER)
            origins, numbers = np.unique(chunk.view("origin")[is_head], return_counts=True)
            counts.update(dict(zip(origins.tolist(), numbers.tolist(), strict=True)))
    return counts


def held_back(table: StateTable) -> HeldBack:
    """How many messages each queue will get, or may get, later."""
    found = HeldBack(Counter(), Counter())
    for half in table.kept():
        if half.state is State.PREPARED:
            found.undecided[half.queue] += 1
        elif half.state is State.COMMITTED and half.next_at_ms != NEVER:
            found.timed[half.queue] += 1
    for chunk in table.chunks.values():
        if chunk.needed:
            state = chunk.view("state")
            _count(found.undecided, chunk, state == _PREPARED)
            is_timed = (state == _COMMITTED) & (chunk.view("next_at_ms") != NEVER)
            _count(found.timed, chunk, is_timed)
    return found


def _count(counts: Counter[int], chunk: Chunk, is_wanted: Rows) -> None:
    queues, numbers = np.unique(chunk.view("queue")[is_wanted], return_counts=True)
    counts.update(dict(zip(queues.tolist(), numbers.tolist(), strict=True)))
