"""Deletes the oldest part of the log: always a prefix, and never what is still needed.

This module decides which segments may go; ``retirement.py`` removes each of them. A retirement is a
generator of steps, so that the logic exists once: ``retain`` does the steps at once, and the broker
does them while it serves clients.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from escrowmq.store.retention.retirement import (
    Aside,
    Carrying,
    Checkpointing,
    Removed,
    Retirement,
    Waits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from escrowmq.store.retention.retirement import Step, Steps
    from escrowmq.store.store import Store
    from escrowmq.transaction.commands import Decision


def removable_below(store: Store, now_ms: int) -> int:
    """Return the log offset below which everything may be deleted: a segment's start."""
    below = max(expired_below(store, now_ms), crowded_below(store))
    if store.follower is not None:
        # Do not delete log that the state store has not read.
        followed = [
            one.start for one in store.log.segments if one.start <= store.follower.log_offset
        ]
        below = min(below, max(followed, default=store.log.start))
    return below


def expired_below(store: Store, now_ms: int) -> int:
    """Return the log offset below which everything may be deleted by age alone."""
    below = store.log.start
    for _, after in pairwise(store.log.segments):
        # Store times never go back, so no frame of a segment is newer than the first frame of the
        # next one. A segment without frames has no time yet.
        if not 0 < after.first_at_ms <= now_ms - store.config.retention_ms:
            break
        below = after.start
    return below


def crowded_below(store: Store) -> int:
    """Return the log offset below which everything may be deleted by size alone.

    The bytes of messages that are still needed do not count.
    """
    below, limit = store.log.start, store.config.retention_bytes
    if not limit:
        return below
    total = store.log.written - below - store.table.needed_bytes
    for segment, after in pairwise(store.log.segments):
        if total <= limit or not after.first_at_ms:
            break
        below = after.start
        total -= segment.size
    return below


def retirements(
    store: Store, now_ms: int, removed: Removed, may_delete: Callable[[], bool] = lambda: True
) -> Steps:
    """Retire segments, oldest first, until none is left that may go."""
    while (below := removable_below(store, now_ms)) > store.log.start:
        if not may_delete():
            removed.waits = Waits.FOR_PERMISSION
            return
        is_expired = expired_below(store, now_ms) > store.log.start
        yield from Retirement(store, below, removed, is_expired=is_expired).steps()
        if removed.waits:
            return


def next_step(steps: Steps, decisions: Sequence[Decision] | None) -> Step | None:
    """Pass on the last step's decisions, if any; return the next step, or None after the last."""
    try:
        return steps.send(decisions)
    except StopIteration:
        return None


def do_step(store: Store, step: Step, now_ms: int) -> list[Decision]:
    """Do a step at once; return its decisions."""
    if isinstance(step, Carrying):
        decisions = [store.execute(command, now_ms) for command in step.commands]
        store.sync()
        return decisions
    if isinstance(step, Aside):
        step.work()
    elif isinstance(step, Checkpointing):
        store.checkpoint()
    return []


def retain(store: Store, now_ms: int) -> Removed:
    """Delete what retention allows. All frames must be written, all queue entries published."""
    removed = Removed(log_start=store.log.start)
    steps = retirements(store, now_ms, removed)
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(store, step, now_ms)
    return removed
