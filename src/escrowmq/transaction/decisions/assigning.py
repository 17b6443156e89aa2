"""Assignment of queue offsets to messages that become visible."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from escrowmq.transaction.records import Span

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions


def give_each(core: Transactions, queues: list[int]) -> list[int]:
    """Return, for each message, the next offset in its queue."""
    ends: dict[int, int] = {}
    offsets = []
    for queue in queues:
        offset = ends.get(queue, -1)
        if offset < 0:
            offset = core.queue_ends.get(queue, 0)
        ends[queue] = offset + 1
        offsets.append(offset)
    return offsets


def waiting_rows(
    core: Transactions, ranges: list[tuple[int, int]], now_ms: int
) -> list[tuple[int, int]]:
    """Return the rows that become visible later than now, and when."""
    if not core.delays:
        return []
    return [
        (row, now_ms + core.delays[row])
        for first, count in ranges
        for row in range(first, first + count)
        if row in core.delays
    ]


def give_ranges(core: Transactions, ranges: list[tuple[int, int]], waiting: set[int]) -> list[Span]:
    """Return queue offsets for these rows: one run per queue, in the order of the rows."""
    counts: Counter[int] = Counter()
    for first, count in ranges:
        queues = core.table.queues(first, count)
        if waiting:
            queues = [queue for row, queue in enumerate(queues, first) if row not in waiting]
        if queues and queues.count(queues[0]) == len(queues):
            counts[queues[0]] += len(queues)
        else:
            counts.update(queues)
    return [Span(queue, core.queue_ends[queue], count) for queue, count in counts.items()]


def is_deleted(core: Transactions, ranges: list[tuple[int, int]]) -> bool:
    """Whether the topic of any of these rows was deleted since the row was held."""
    if not core.names.lacks_queues:
        return False
    ends = core.queue_ends.keys()
    return any(not ends >= set(core.table.queues(first, count)) for first, count in ranges)
