"""Counts messages that are held back, by column instead of row by row."""

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

    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.table.chunk import Chunk
    from escrowmq.store.table.row_places import RowPlaces
    from escrowmq.store.table.survivor_columns import KeptRows

SPAN_PER_NUMBER_MAX = 8
"""Numbers are counted in a table if it has at most this many places for each of them."""

_PREPARED = int(State.PREPARED)
_PARKED = int(State.PARKED)
_COMMITTED = int(State.COMMITTED)


class HeldBack(msgspec.Struct, frozen=True):
    """Messages that no consumer sees yet, by the number of their queue."""

    #: Half messages of prepared transactions; parked ones do not count.
    undecided: Counter[int]
    #: Delayed messages that are not due yet.
    timed: Counter[int]


def prepared_by_origin(table: RowPlaces) -> Counter[int]:
    """Return how many transactions of each origin may be back-checked."""
    # Only the head of a transaction is ever due.
    found = [np.zeros(0, dtype=np.int64)]
    for block in table.needed_blocks():
        is_head = (block.view("state") == _PREPARED) & (block.view("next_at_ms") != NEVER)
        found.append(block.view("origin")[is_head])
    return _counted(np.concatenate(found))


def _counted(numbers: Rows) -> Counter[int]:
    """Return how often each number occurs, without a sort if the numbers are close together.

    One call covers all blocks, because a Counter that is not empty adds one key at a time.
    """
    if not len(numbers):
        return Counter()
    lowest = int(numbers.min())
    if int(numbers.max()) - lowest <= SPAN_PER_NUMBER_MAX * len(numbers):
        by_number = np.bincount(numbers - lowest)
        (keys,) = by_number.nonzero()
        counts = by_number[keys]
        keys = keys + lowest
    else:
        keys, counts = np.unique(numbers, return_counts=True)
    return Counter(dict(zip(keys.tolist(), counts.tolist(), strict=True)))


def held_back(table: RowPlaces) -> HeldBack:
    """Return how many messages each queue will get, or may get, later."""
    found = HeldBack(Counter(), Counter())
    for block in table.needed_blocks():
        state = block.view("state")
        _count(found.undecided, block, "queue", state == _PREPARED)
        is_timed = (state == _COMMITTED) & (block.view("next_at_ms") != NEVER)
        _count(found.timed, block, "queue", is_timed)
    return found


def held_in(table: RowPlaces, queues: Sequence[int], rows_max: int) -> HeldRows:
    """Return what is prepared, parked or waiting in these queues."""
    undecided: Counter[int] = Counter()
    waiting: Counter[int] = Counter()
    rows: list[int] = []
    if not queues:
        return HeldRows(undecided=undecided, waiting=waiting, rows=rows)
    for block in table.needed_blocks():
        state = block.view("state")
        is_wanted = np.isin(block.view("queue"), queues) & (block.view("size") > 0)
        is_undecided = is_wanted & ((state == _PREPARED) | (state == _PARKED))
        _count(undecided, block, "queue", is_undecided)
        rows += _lowest(block.half_offsets()[is_undecided], rows_max)
        is_timed = is_wanted & (state == _COMMITTED) & (block.view("next_at_ms") != NEVER)
        _count(waiting, block, "queue", is_timed)
    return HeldRows(undecided=undecided, waiting=waiting, rows=sorted(rows)[:rows_max])


def _lowest(rows: Rows, rows_max: int) -> list[int]:
    if len(rows) > rows_max:
        rows = np.partition(rows, rows_max)[:rows_max]
    found: list[int] = rows.tolist()
    return found


def _count(counts: Counter[int], block: Chunk | KeptRows, by: str, is_wanted: Rows) -> None:
    keys, numbers = np.unique(block.view(by)[is_wanted], return_counts=True)
    counts.update(dict(zip(keys.tolist(), numbers.tolist(), strict=True)))
