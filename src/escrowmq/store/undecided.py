"""Counts of what is undecided, without looking at the rows one by one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.state_table import StateTable

_PREPARED = int(State.PREPARED)


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
