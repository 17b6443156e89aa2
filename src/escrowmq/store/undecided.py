"""Counts of what is held back, without looking at the rows one by one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import HeldRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.store.chunk import Chunk
    from escrowmq.store.rows import Rows
    from escrowmq.store.state_table import StateTable

_PREPARED = int(State.PREPARED)
_PARKED = int(State.PARKED)
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


def held_in(table: StateTable, queues: Sequence[int], rows_max: int) -> HeldRows:
    """What is undecided, parked or waiting in these queues."""
    undecided: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    rows: list[int] = []
    if not queues:
        return HeldRows(undecided=undecided, waiting=waiting, rows=rows)
    wanted = set(queues)
    for half in table.kept():
        if half.queue in wanted and half.is_needed:
            if half.state is State.COMMITTED:
                waiting[half.queue] += 1
            else:
                undecided[half.queue] += 1
                rows.append(half.half_offset)
    for chunk in table.chunks.values():
        if chunk.needed:
            state = chunk.view("state")
            is_wanted = np.isin(chunk.view("queue"), queues) & (chunk.view("size") > 0)
            is_undecided = is_wanted & ((state == _PREPARED) | (state == _PARKED))
            _count(undecided, chunk, is_undecided)
            rows += (chunk.base + np.flatnonzero(is_undecided)[:rows_max]).tolist()
            is_timed = is_wanted & (state == _COMMITTED) & (chunk.view("next_at_ms") != NEVER)
            _count(waiting, chunk, is_timed)
    return HeldRows(undecided=undecided, waiting=waiting, rows=sorted(rows)[:rows_max])


def _count(counts: Counter[int], chunk: Chunk, is_wanted: Rows) -> None:
    queues, numbers = np.unique(chunk.view("queue")[is_wanted], return_counts=True)
    counts.update(dict(zip(queues.tolist(), numbers.tolist(), strict=True)))
