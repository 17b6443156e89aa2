"""From records to consume queues: which entries a record makes visible.

Entries are made when the record is applied and handed to the queues after the flush, in the order
of the log, at most ``SLICE_ROWS`` at a time: a Spark batch may bring millions.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.consume_queue import PACK_ENTRY
from escrowmq.store.rows import QUEUE_ENTRY, Rows
from escrowmq.transaction.records import (
    BatchDecided,
    Decided,
    Prepared,
    Record,
    Released,
    Scheduled,
    Span,
    Stored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.key_index import KeyIndex
    from escrowmq.store.state_table import StateTable
    from escrowmq.transaction.core import Where

SLICE_ROWS = 65_536

#: Queue number, first queue offset, entries.
Block = tuple[int, int, bytes]


class Dispatcher:
    """Entries on their way to the queues."""

    def __init__(self, table: StateTable, keys: KeyIndex) -> None:
        self._table = table
        self._keys = keys
        self._waiting: deque[Block | Iterator[list[Block]]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether every entry is with its queue."""
        return not self._waiting

    def take(self) -> list[Block]:
        """The next entries, about ``SLICE_ROWS`` of them; empty when there are no more."""
        blocks: list[Block] = []
        rows = 0
        while self._waiting and rows < SLICE_ROWS:
            first = self._waiting[0]
            if isinstance(first, tuple):
                blocks.append(first)
                rows += len(first[2]) // QUEUE_ENTRY.itemsize
                self._waiting.popleft()
                continue
            more = next(first, None)
            if more is None:
                self._waiting.popleft()
            else:
                blocks.extend(more)
                rows += SLICE_ROWS
        return blocks

    def dispatch(self, record: Record, where: Where) -> None:
        """Note what a record that was just applied makes visible and findable."""
        kind = type(record)
        if kind is Prepared or kind is Scheduled:
            self._index(record, where)  # type: ignore[arg-type]
        elif kind is Decided:
            self._decided(record, where.at_ms)  # type: ignore[arg-type]
        elif kind is Stored:
            self._stored(record, where)  # type: ignore[arg-type]
        elif isinstance(record, Released):
            self._released(record, where.at_ms)
        elif isinstance(record, BatchDecided):
            self._waiting.append(self._ranges(record.ranges, record.given, set(), where.at_ms))

    def _index(self, record: Prepared | Scheduled | Stored, where: Where) -> None:
        placed = record.placed
        hashes = [key_hash for hashes in placed.keys for key_hash in hashes]
        offsets = []
        offset = where.messages
        for size, its_hashes in zip(placed.sizes, placed.keys, strict=True):
            offsets += [offset] * len(its_hashes)
            offset += size
        self._keys.extend(hashes, offsets)

    def _stored(self, record: Stored, where: Where) -> None:
        self._index(record, where)
        placed = record.placed
        offset, at_ms = where.messages, where.at_ms
        queues = placed.queues
        if queues.count(queues[0]) == len(queues):
            entries = []
            for size, tags, crc in zip(placed.sizes, placed.tags, placed.crcs, strict=True):
                entries.append(PACK_ENTRY(offset, at_ms, size, tags, crc))
                offset += size
            self._waiting.append((queues[0], record.queue_offsets[0], b"".join(entries)))
            return
        columns = zip(
            queues, record.queue_offsets, placed.sizes, placed.tags, placed.crcs, strict=True
        )
        for queue, queue_offset, size, tags, crc in columns:
            entry = PACK_ENTRY(offset, at_ms, size, tags, crc)
            self._waiting.append((queue, queue_offset, entry))
            offset += size

    def _released(self, record: Released, at_ms: int) -> None:
        columns = zip(record.rows, record.queues, record.queue_offsets, strict=True)
        for row, queue, queue_offset in columns:
            self._waiting.append((queue, queue_offset, self._table.entry(row, at_ms)))

    def _decided(self, record: Decided, at_ms: int) -> None:
        given = record.given
        if not given:
            return
        if len(given) == 1 and given[0].count == 1 and not record.waiting:
            span = given[0]
            entry = self._table.entry(record.ranges[0][0], at_ms)
            self._waiting.append((span.queue, span.first, entry))
            return
        waiting = {row for row, _ in record.waiting}
        for blocks in self._ranges(record.ranges, given, waiting, at_ms):
            self._waiting.extend(blocks)

    def _ranges(
        self, ranges: list[tuple[int, int]], given: list[Span], waiting: set[int], at_ms: int
    ) -> Iterator[list[Block]]:
        ends = {span.queue: span.first for span in given}
        for first, count in ranges:
            queues, entries = self._table.entries(first, count)
            entries["visible_at_ms"] = at_ms
            if waiting:
                kept = [row not in waiting for row in range(first, first + count)]
                queues, entries = queues[kept], entries[kept]
            yield _by_queue(queues, entries, ends)


def _by_queue(queues: Rows, entries: Rows, ends: dict[int, int]) -> list[Block]:
    """One block per queue, rows in their order; moves ``ends``."""
    order = np.argsort(queues, kind="stable")
    queues, entries = queues[order], entries[order]
    borders = np.flatnonzero(queues[1:] != queues[:-1]) + 1
    blocks = []
    for run in np.split(np.arange(len(queues)), borders):
        if len(run):
            queue = int(queues[run[0]])
            blocks.append((queue, ends[queue], entries[run[0] : run[-1] + 1].tobytes()))
            ends[queue] += len(run)
    return blocks
