"""Deleting the oldest log: a prefix only, and never what is still needed.

First every needed half message in the prefix is carried forward; then a checkpoint records the new
start; only then are files removed.  A crash at any point leaves a store that opens and goes on.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from escrowmq.transaction.commands import Carry

if TYPE_CHECKING:
    from escrowmq.store.store import Store

CARRIED_ROWS_MAX = 4_096


class Removed(msgspec.Struct, kw_only=True):
    """What one run of retention did."""

    log_start: int
    segments: int
    carried: int


def removable_below(store: Store, now_ms: int) -> int:
    """The log offset below which everything may go: a segment's start."""
    segments = store.log.segments
    config = store.config
    below = segments[0].start if segments else 0
    total = store.log.written - below
    for segment, after in pairwise(segments):
        # Store times never go back, so the next segment's first is the latest of this one's.
        # One without a frame yet says nothing.
        is_old = 0 < after.first_at_ms <= now_ms - config.retention_ms
        is_too_much = 0 < config.retention_bytes < total
        if not (is_old or is_too_much):
            break
        below = after.start
        total -= segment.size
    return below


def retain(store: Store, now_ms: int) -> Removed:
    """Delete what retention allows.  Nothing may be gathered, unflushed or unpublished."""
    below = removable_below(store, now_ms)
    removed = Removed(log_start=below, segments=0, carried=0)
    if below <= store.log.start:
        return removed
    while rows := store.table.needed_below(below, CARRIED_ROWS_MAX):
        for first in sorted({store.row(row).first for row in rows}):
            decision = store.execute(Carry(first=first), now_ms)
            removed.carried += len(decision.copies)
        store.sync()
    cut_at_ms = next(s.first_at_ms for s in store.log.segments if s.start == below)
    for queue in store.queues.values():
        queue.forget_below(queue.first_after(below, cut_at_ms + store.copy_after_max_ms))
    store.core.batches.forget_below(below)
    store.core.names.origins.forget_below(below)
    store.keys.forget_below(below)
    store.parkings.forget_below(below)
    store.log_start = below
    store.table.forget_below(below)
    # Twice: the one before the newest must not count on what is about to go.
    store.checkpoint()
    store.checkpoint()
    removed.segments = len(store.log.remove_below(below))
    for queue in store.queues.values():
        queue.remove_files()
    return removed
