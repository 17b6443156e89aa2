"""Dispatch from records to consume queues: the entries that a record makes visible.

The dispatcher notes entries when their record is applied. The store adds them to the queues after
the flush, in log order, about ``SLICE_ROWS`` at a time, because a Spark batch may bring millions.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np

from escrowmq.store.queue.consume_queue import EntryColumns, QueueEntry
from escrowmq.store.queue.entries import columns_of, columns_of_each, entry_of
from escrowmq.store.queue.lost import skipped, with_holes
from escrowmq.transaction import records as kinds
from escrowmq.transaction.records import NOWHERE, QuietRecord, Record, Span, readers_by_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from escrowmq.store.index.key_index import KeyIndex
    from escrowmq.store.queue.lost import LostRanges
    from escrowmq.store.table.state_table import StateTable
    from escrowmq.transaction.core import Where

SLICE_ROWS = 65_536

#: Queue number, first queue offset, one entry or several.
EntryBlock = tuple[int, int, QueueEntry | EntryColumns]


class Dispatcher:
    """Entries that wait to be added to their consume queues."""

    def __init__(self, table: StateTable, keys: KeyIndex, lost: LostRanges) -> None:
        self._table = table
        self._keys = keys
        self._lost = lost
        self._waiting: deque[EntryBlock | Iterator[list[EntryBlock]]] = deque()
        #: By type of record, the function that dispatches it.
        self.readers = readers_by_type(self._reader)

    @property
    def is_idle(self) -> bool:
        """Whether no entry waits."""
        return not self._waiting

    def take(self) -> list[EntryBlock]:
        """Return the next entries, about ``SLICE_ROWS`` of them; empty when none is left."""
        blocks: list[EntryBlock] = []
        rows = 0
        while self._waiting and rows < SLICE_ROWS:
            first = self._waiting[0]
            if isinstance(first, tuple):
                blocks.append(first)
                rows += len(first[2].sizes) if isinstance(first[2], EntryColumns) else 1
                self._waiting.popleft()
                continue
            more = next(first, None)
            if more is None:
                self._waiting.popleft()
            else:
                blocks.extend(more)
                rows += SLICE_ROWS
        return blocks

    def _reader(self, record: Record) -> Callable[[Any, Where], None]:  # noqa: PLR0911 - one case per record
        match record:
            case kinds.Prepared() | kinds.Scheduled() | kinds.Carried():
                return self._index
            case kinds.Stored():
                return self._stored
            case kinds.Decided():
                return self._decided
            case kinds.DecidedMany():
                return self._decided_many
            case kinds.BatchDecided():
                return self._batch_decided
            case kinds.Released():
                return self._released
            case _ if isinstance(record, QuietRecord):
                return lambda *_: None
            case _:
                assert_never(record)

    def skip(self, queue: int, first: int, end: int, where: Where) -> None:
        """Add empty entries at queue offsets ``[first, end)``, which lost frames had assigned."""
        self._waiting.append(skipped(queue, first, end, where))

    def _index(self, record: kinds.MessageRecord, where: Where) -> None:
        placed = record.placed
        if len(placed.sizes) == 1:
            for key_hash in (*placed.unique, *placed.keys):
                self._keys.add(key_hash, where.messages)
            return
        offsets = list(accumulate(placed.sizes[:-1], initial=where.messages))
        self._keys.extend(placed.unique, offsets)
        if placed.keys:
            self._keys.extend(placed.keys, [offsets[number] for number in placed.keyed])

    def _stored(self, record: kinds.Stored, where: Where) -> None:
        self._index(record, where)
        placed = record.placed
        queues = placed.queues
        offset, at_ms = where.messages, where.at_ms
        if len(queues) == 1:
            entry = QueueEntry(offset, at_ms, placed.sizes[0], placed.tags[0], placed.crcs[0])
            self._waiting.append((queues[0], record.queue_offsets[0], entry))
            return
        columns = EntryColumns(
            log_offsets=array("q", accumulate(placed.sizes[:-1], initial=offset)),
            sizes=array("I", placed.sizes),
            tags=array("i", placed.tags),
            crcs=array("I", placed.crcs),
            visible_at_ms=array("q", (at_ms,)) * len(queues),
        )
        if queues.count(queues[0]) == len(queues):
            self._waiting.append((queues[0], record.queue_offsets[0], columns))
            return
        # Offsets within a queue are consecutive, so the first one determines the rest.
        firsts = dict(zip(reversed(queues), reversed(record.queue_offsets), strict=True))
        self._waiting.extend(_by_queue(columns, array("I", queues), firsts))

    def _entry(self, row: int, where: Where) -> QueueEntry:
        entry = entry_of(self._table, row, where.at_ms)
        # A row that is gone leaves an empty entry, which retention deletes with this frame.
        return entry if entry.size else QueueEntry(where.frame, where.at_ms, 0, 0, 0)

    def _released(self, record: kinds.Released, where: Where) -> None:
        if NOWHERE in record.queue_offsets[:1]:
            # Their topic was deleted, so none of them becomes visible.
            return
        if not self._lost.ranges:
            rows = np.array(record.rows, dtype=np.int64)
            columns, _ = columns_of_each(self._table, rows, where.at_ms, gone_at=where.frame)
            # Offsets within a queue are consecutive, so the first one determines the rest.
            ends = dict(zip(reversed(record.queues), reversed(record.queue_offsets), strict=True))
            self._waiting.extend(_by_queue(columns, array("I", record.queues), ends))
            return
        for row, queue, queue_offset in zip(
            record.rows, record.queues, record.queue_offsets, strict=True
        ):
            entry = self._entry(row, where)
            if self._lost.hold(entry.log_offset):
                entry = QueueEntry(where.frame, where.at_ms, 0, 0, 0)
            self._waiting.append((queue, queue_offset, entry))

    def _decided(self, record: kinds.Decided, where: Where) -> None:
        given = record.given
        if not given:
            return
        if len(given) == 1 and given[0].count == 1 and not record.waiting:
            span = given[0]
            entry = self._entry(record.ranges[0][0], where)
            self._waiting.append((span.queue, span.first, entry))
            return
        waiting = {row for row, _ in record.waiting}
        for blocks in self._ranges(record.ranges, given, waiting, where):
            self._waiting.extend(blocks)

    def _batch_decided(self, record: kinds.BatchDecided, where: Where) -> None:
        waits = {row for row, _ in record.waiting}
        self._waiting.append(self._ranges(record.ranges, record.given, waits, where))

    def _decided_many(self, record: kinds.DecidedMany, where: Where) -> None:
        rows = np.frombuffer(record.committed, dtype=np.int64)
        if self._table.lacks_rows:
            ranges = [(row, 1) for row in rows.tolist()]
            for blocks in self._ranges(ranges, record.given, set(), where):
                self._waiting.extend(blocks)
        else:
            columns, queues = columns_of_each(self._table, rows, where.at_ms)
            ends = {span.queue: span.first for span in record.given}
            self._waiting.extend(_by_queue(columns, queues, ends))

    def _ranges(
        self, ranges: list[tuple[int, int]], given: list[Span], waiting: set[int], where: Where
    ) -> Iterator[list[EntryBlock]]:
        if self._table.lacks_rows:
            held = self._held(ranges, waiting, where)
            if None in held:
                yield from with_holes(held, given, where)
                return
        ends = {span.queue: span.first for span in given}
        for first, count in ranges:
            at = first
            for columns, queues in columns_of(self._table, first, count, where.at_ms):
                after = at + len(queues)
                if len(given) == 1 and not waiting:
                    queue = given[0].queue
                    yield [(queue, ends[queue], columns)]
                    ends[queue] += len(queues)
                elif waiting:
                    rows = [row - at for row in range(at, after) if row not in waiting]
                    yield _by_queue(columns, queues, ends, rows)
                else:
                    yield _by_queue(columns, queues, ends)
                at = after

    def _held(
        self, ranges: list[tuple[int, int]], waiting: set[int], where: Where
    ) -> list[tuple[int, QueueEntry] | None]:
        """Return queue and entry of each row that is not waiting; None for a row that is gone."""
        halves = (
            self._table.get(row)
            for first, count in ranges
            for row in range(first, first + count)
            if row not in waiting
        )
        return [
            (half.queue, self._entry(half.half_offset, where)) if half else None for half in halves
        ]


def _by_queue(
    columns: EntryColumns, queues: array[int], ends: dict[int, int], only: list[int] | None = None
) -> list[EntryBlock]:
    """Return one block per queue with its rows in order, and advance ``ends``."""
    numbers = np.frombuffer(queues, dtype=np.uint32)
    order = np.argsort(numbers, kind="stable")
    if only is not None:
        order = order[np.isin(order, only)]
    numbers = numbers[order]
    picked = [
        array(column.typecode, np.frombuffer(column, dtype=column.typecode)[order].tobytes())
        for column in (
            columns.log_offsets,
            columns.sizes,
            columns.tags,
            columns.crcs,
            columns.visible_at_ms,
        )
    ]
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    blocks: list[EntryBlock] = []
    for start, end in pairwise(borders):
        if start < end:
            queue = int(numbers[start])
            block = EntryColumns(*(column[start:end] for column in picked))
            blocks.append((queue, ends[queue], block))
            ends[queue] += end - start
    return blocks
