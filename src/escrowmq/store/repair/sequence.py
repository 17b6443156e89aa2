"""Finds gaps in half offsets, queue offsets and names, which a log assigns consecutively.

If the intact frames of a log skip a number, the frame that assigned it is gone. ``Sequence`` reads
frames in log order and notes each gap, and the log offsets between which it arose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from escrowmq.store.repair.report import NumberGap
from escrowmq.transaction import records as kinds
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NOWHERE, PLAIN, CatalogRecord

if TYPE_CHECKING:
    from escrowmq.store.checkpoint.checkpoint import Checkpoint
    from escrowmq.transaction.records import Record

HALF = "half"
QUEUE = "queue"
QUEUE_NAME = "queue_name"
ORIGIN = "origin"

_NUMBERLESS = (
    CatalogRecord
    | kinds.PopRecord
    | kinds.Answered
    | kinds.Began
    | kinds.TimeMoved
    | kinds.OriginsExpired
    | kinds.QueriesExpired
    | kinds.NamesUsed
)


class _Counter:
    """State of one number sequence."""

    def __init__(self, what: str, queue: int, next_: int | None, after: int) -> None:
        self.what = what
        self.queue = queue
        #: The next number; None if any number may follow.
        self.next = next_
        #: Whether the first number seen may be lower, because the log's prefix is deleted.
        self.may_begin_lower = after > 0
        #: The log offset of the frame that assigned the last number.
        self.after = after


class Sequence:
    """Tracks the next number of each sequence."""

    def __init__(self, log_start: int, checkpoint: Checkpoint | None) -> None:
        self._log_start = log_start
        self._starts: dict[int, int] = {}
        #: Queue numbers below this that have no start belong to deleted queues.
        self._starts_end = 0
        names = origins = 0
        if log_start and checkpoint is not None:
            # The checkpoint knows what the deleted prefix of the log assigned.
            bounds = zip(checkpoint.queues, checkpoint.queue_bounds, strict=True)
            self._starts = {named.id: start for named, (start, _) in bounds}
            self._starts_end = names = checkpoint.next_queue
            origins = checkpoint.origins_end
        self._halves = _Counter(HALF, -1, None if log_start else 0, log_start)
        self._queue_names = _Counter(QUEUE_NAME, -1, names, log_start)
        self._origins = _Counter(ORIGIN, -1, origins, log_start)
        self._queues: dict[int, _Counter] = {}
        self.gaps: list[NumberGap] = []
        #: Numbers that were assigned a second time, and the log offset of the frame that did.
        self.repeats: list[NumberGap] = []

    @property
    def queues(self) -> int:
        """Number of queues that have been named."""
        return self._queue_names.next or 0

    def read(self, records: list[Record], log_offset: int) -> None:
        """Read the records of the frame at this log offset."""
        for record in records:
            self._read(record, log_offset)

    def _read(self, record: Record, log_offset: int) -> None:  # noqa: C901, PLR0912 - one case per record
        match record:
            case kinds.Prepared():
                self._use(self._origins, record.origin, log_offset)
                self._hold(record, log_offset)
            case kinds.Decided() | kinds.BatchDecided() | kinds.DecidedMany():
                self._decide(record, log_offset)
            case kinds.Stored():
                self._give_each(record.placed.queues, record.queue_offsets, log_offset)
            case kinds.Scheduled():
                self._hold(record, log_offset)
            case kinds.Asked() | kinds.Parked() | kinds.Resumed():
                self._use(self._halves, record.head, log_offset)
            case Recalled():
                self._use(self._halves, record.row, log_offset)
                self._use(self._queue_names, record.queue, log_offset)
            case kinds.Released():
                self._use(self._halves, max(record.rows), log_offset)
                self._give_each(record.queues, record.queue_offsets, log_offset)
            case kinds.Carried():
                self._carry(record, log_offset)
            case kinds.NamedQueue():
                self._name(self._queue_names, record.id, log_offset)
            case kinds.NamedOrigin():
                self._name(self._origins, record.id, log_offset)
            case kinds.Lost():
                self._lose(record, log_offset)
            case _ if isinstance(record, _NUMBERLESS):
                pass
            case _:
                assert_never(record)

    def meet(self, checkpoint: Checkpoint) -> None:
        """Check at a checkpoint's log end that every number it counts has been assigned."""
        at = checkpoint.log_end
        self._step(self._queue_names, checkpoint.next_queue, 0, at)
        self._step(self._origins, checkpoint.origins_end, 0, at)
        self._step(self._halves, checkpoint.rows_end, 0, at)
        for named, (_, end) in zip(checkpoint.queues, checkpoint.queue_bounds, strict=True):
            self._step(self._queue(named.id), end, 0, at)

    def _hold(self, record: kinds.Prepared | kinds.Scheduled, log_offset: int) -> None:
        for queue in record.placed.queues:
            self._use(self._queue_names, queue, log_offset)
        self._step(self._halves, record.first, len(record.placed.queues), log_offset)

    def _decide(self, record: kinds.Op, log_offset: int) -> None:
        for first, count in record.ranges:
            self._use(self._halves, first + count - 1, log_offset)
        for span in record.given:
            self._give(span.queue, span.first, span.count, log_offset)

    def _give_each(self, queues: list[int], queue_offsets: list[int], log_offset: int) -> None:
        for queue, first in zip(queues, queue_offsets, strict=True):
            if first != NOWHERE:
                self._give(queue, first, 1, log_offset)

    def _carry(self, record: kinds.Carried, log_offset: int) -> None:
        for queue in record.placed.queues:
            self._use(self._queue_names, queue, log_offset)
        for row in record.rows:
            self._use(self._halves, row.half_offset, log_offset)
            if row.origin != PLAIN:
                self._use(self._origins, row.origin, log_offset)

    def _give(self, queue: int, first: int, count: int, log_offset: int) -> None:
        self._use(self._queue_names, queue, log_offset)
        self._step(self._queue(queue), first, count, log_offset)

    def _queue(self, queue: int) -> _Counter:
        counter = self._queues.get(queue)
        if counter is None:
            start = self._starts.get(queue, None if queue < self._starts_end else 0)
            counter = self._queues[queue] = _Counter(QUEUE, queue, start, self._log_start)
        return counter

    def _use(self, counter: _Counter, number: int, log_offset: int) -> None:
        """Note the use of a number, which must have been assigned before."""
        if counter.next is not None and number >= counter.next:
            # The frame that assigned it is unknown, and the next gap may be from there, too.
            after = counter.after
            self._step(counter, number + 1, 0, log_offset)
            counter.after = after

    def _name(self, counter: _Counter, number: int, log_offset: int) -> None:
        assert counter.next is not None
        if number >= counter.next:
            self._step(counter, number, 1, log_offset)

    def _lose(self, record: kinds.Lost, log_offset: int) -> None:
        if record.rows_end >= 0:
            self._halves.next = max(self._halves.next or 0, record.rows_end)
            self._halves.after = log_offset
        for queue, end in record.queue_ends:
            counter = self._queue(queue)
            counter.next, counter.after, counter.may_begin_lower = end, log_offset, False

    def _step(self, counter: _Counter, first: int, count: int, log_offset: int) -> None:
        if counter.next is None:
            counter.next = first
        if first > counter.next:
            self._note(self.gaps, counter, first, log_offset)
        elif first < counter.next and not counter.may_begin_lower:
            self._note(self.repeats, counter, first, log_offset)
        counter.may_begin_lower = False
        counter.next, counter.after = first + count, log_offset

    def _note(self, notes: list[NumberGap], counter: _Counter, found: int, log_offset: int) -> None:
        assert counter.next is not None
        notes.append(
            NumberGap(
                what=counter.what,
                queue=counter.queue,
                expected=counter.next,
                found=found,
                after=counter.after,
                before=log_offset,
            )
        )
