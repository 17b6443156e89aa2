"""Bulk verdicts: simple transactions are decided together, in columns.

The rules are those of ``checking.obey`` for the most common case: a transaction of one half message
that is to be committed or rolled back. Every other verdict is left to ``checking.obey``, so that no
rule exists twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.commands import Decision, Ended, Obeyed, Verdicts
from escrowmq.transaction.records import PLAIN, DecidedMany, Span
from escrowmq.transaction.states import State
from escrowmq.transaction.table import ALONE

if TYPE_CHECKING:
    from collections.abc import Collection

    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Numbers

VERDICTS_MAX = 32_768


def obey_many(core: Transactions, command: Verdicts, now_ms: int) -> Decision:
    """Carry out verdicts on simple transactions, unless these have changed; leave the others."""
    rows = np.asarray(command.half_offsets, dtype=np.int64)
    commits = np.asarray(command.commits, dtype=np.bool_)
    assert len(rows) <= VERDICTS_MAX
    held = core.table.columns(rows)
    is_simple = held.is_here & (held.origin != PLAIN) & (held.part == ALONE) & is_first(rows)
    # Not simple: transactions with further requests or with a delay.
    for known in (core.parts, core.heads, core.delays):
        is_simple &= ~is_among(rows, known)
    # Not simple: parts of a sink's attempt, whose batch must be remembered.
    is_simple &= ~np.isin(held.origin, core.names.origins.parts)
    if core.names.lacks_queues:
        # Not simple: messages of a deleted topic.
        gone = set(np.unique(held.queue).tolist()) - core.queue_ends.keys()
        is_simple &= ~np.isin(held.queue, list(gone))
    is_undecided = (held.state == State.PREPARED) | (held.state == State.PARKED)
    # Not simple: a late commit, which needs a copy.
    is_late = commits & (now_ms - held.stored_at_ms >= core.copy_after_ms)
    is_as_seen = (held.state == np.asarray(command.states)) & (
        held.checks_sent == np.asarray(command.checks_sent)
    )
    is_ended = is_simple & is_as_seen & is_undecided & ~is_late
    is_committed, is_rolled_back = is_ended & commits, is_ended & ~commits
    is_stale = is_simple & ~is_as_seen
    ends = np.zeros(len(rows), dtype=np.uint8)
    ends[is_committed] = Ended.COMMITTED
    ends[is_rolled_back] = Ended.ROLLED_BACK
    ends[is_stale] = Ended.STALE
    is_opposite = held.state == np.where(commits, State.ROLLED_BACK, State.COMMITTED)
    reply = Obeyed(
        ends=ends.tobytes(), contradicted=np.flatnonzero(is_stale & is_opposite).tolist()
    )
    if not is_ended.any():
        return Decision(reply=reply)
    decided = DecidedMany(
        command.by,
        rows[is_committed].tobytes(),
        rows[is_rolled_back].tobytes(),
        give_each_queue(core, held.queue[is_committed]),
    )
    return Decision(records=(decided,), reply=reply)


def is_first(rows: Numbers) -> Numbers:
    """Mask of each row's first occurrence: the others come after its decision."""
    first = np.ones(len(rows), dtype=np.bool_)
    if not (rows[1:] > rows[:-1]).all():
        first[:] = False
        first[np.unique(rows, return_index=True)[1]] = True
    return first


def is_among(rows: Numbers, known: Collection[int]) -> Numbers:
    """Mask of the rows that are in ``known``."""
    if not known:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.fromiter((row in known for row in rows.tolist()), dtype=np.bool_, count=len(rows))


def give_each_queue(core: Transactions, queues: Numbers) -> list[Span]:
    """Return queue offsets for messages of these queues: one run per queue."""
    numbers, counts = np.unique(queues, return_counts=True)
    return [
        Span(queue, core.queue_ends[queue], count)
        for queue, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    ]
