"""Ranges that a repair took out of the log, and placeholders for what they held.

Assigned numbers stay assigned. A lost half offset has a row without a message. A lost queue offset
has an entry of size 0, which a pull skips.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from escrowmq.store.queue.consume_queue import EntryColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.queue.consume_queue import QueueEntry
    from escrowmq.transaction.core import Where
    from escrowmq.transaction.records import Span

SLICE_ENTRIES = 65_536


class LostRanges:
    """Ranges of the log whose bytes are lost.

    They are few. They stay known after retention has deleted that part of the log, because the lost
    bytes may have been the copy of an older message.
    """

    def __init__(self) -> None:
        #: Start and end of each, sorted, without overlap.
        self.ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Add a range; a known one changes nothing."""
        if (start, end) not in self.ranges:
            insort(self.ranges, (start, end))

    def hold(self, log_offset: int) -> bool:
        """Whether the bytes at this log offset are lost."""
        at = bisect_right(self.ranges, log_offset, key=lambda lost: lost[0]) - 1
        return at >= 0 and log_offset < self.ranges[at][1]


def places(count: int, where: Where) -> EntryColumns:
    """Return placeholder entries, which a pull skips.

    They point at the frame that assigned or lost their offsets, so retention removes them with it.
    """
    none = array("I", bytes(4 * count))
    return EntryColumns(
        log_offsets=array("q", (where.frame,)) * count,
        sizes=none,
        tags=array("i", bytes(4 * count)),
        crcs=none,
        visible_at_ms=array("q", (where.at_ms,)) * count,
    )


def skipped(
    queue: int, first: int, end: int, where: Where
) -> Iterator[list[tuple[int, int, QueueEntry | EntryColumns]]]:
    """Yield blocks of placeholder entries for the queue offsets ``[first, end)``."""
    while first < end:
        count = min(end - first, SLICE_ENTRIES)
        yield [(queue, first, places(count, where))]
        first += count


def with_holes(
    rows: list[tuple[int, QueueEntry] | None], given: list[Span], where: Where
) -> Iterator[list[tuple[int, int, QueueEntry | EntryColumns]]]:
    """Yield blocks for a decision with lost rows; ``rows`` has queue and entry, None if lost.

    The queue of a lost row is unknown. If the lost rows are adjacent, the counts tell their queue
    offsets. If not, a queue that lost any row gets placeholders only.
    """
    lost = [at for at, row in enumerate(rows) if row is None]
    is_together = bool(lost) and lost[-1] - lost[0] == len(lost) - 1
    for span in given:
        before = _entries(rows[: lost[0]], span.queue)
        after = _entries(rows[lost[0] :], span.queue)
        missing = span.count - len(before) - len(after)
        if missing and not is_together:
            yield from skipped(span.queue, span.first, span.first + span.count, where)
            continue
        first = span.first
        for entry in before:
            yield [(span.queue, first, entry)]
            first += 1
        yield from skipped(span.queue, first, first + missing, where)
        first += missing
        for entry in after:
            yield [(span.queue, first, entry)]
            first += 1


def _entries(rows: list[tuple[int, QueueEntry] | None], queue: int) -> list[QueueEntry]:
    return [row[1] for row in rows if row is not None and row[0] == queue]
