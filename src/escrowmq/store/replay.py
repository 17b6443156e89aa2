"""Applying a log that was written before, many frames at a time.

Most of a log is transactions of one message: a half message, then its commit.  Applied one by one
they would cost a restart ten times what reading them costs, so runs of them are gathered and
applied as columns: first all rows, then all decisions, then all queue entries.  That gives the
same state, because records hold absolute values and a decision follows its half message.  Every
other record is applied as it always is, after what was gathered before it.
"""

from __future__ import annotations

from array import array
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from escrowmq.store.consume_queue import Columns
from escrowmq.store.frames import HEAD_BYTES
from escrowmq.store.rows import STATE_ROW
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import Decided, Prepared

if TYPE_CHECKING:
    import numpy.typing as npt

    from escrowmq.store.frames import Frame
    from escrowmq.store.rows import Rows
    from escrowmq.store.state_table import StateTable
    from escrowmq.store.store import Store

GATHERED_MAX = 4_096


class Gathered:
    """Half messages and decisions that wait to be applied together.

    Tuples on the way in, columns on the way out: the order of the fields is the same.
    """

    def __init__(self) -> None:
        #: Log offset, size, crc, queue, tags, store time, next check, origin, id, unique key.
        self.halves: list[tuple[int, int, int, int, int, int, int, int, str, int]] = []
        #: Hash and log offset of further keys.
        self.keys: list[tuple[int, int]] = []
        #: Row, op offset, time, state, queue (-1 if rolled back), queue offset.
        self.decisions: list[tuple[int, int, int, int, int, int]] = []

    def half_columns(self) -> HalfColumns:
        """The half messages, a column per field."""
        *numbers, ids, unique = zip(*self.halves, strict=True)
        columns = [
            array(typecode, column) for typecode, column in zip("qIIIiqqI", numbers, strict=True)
        ]
        id_hashes = array("I", map(crc32, map(str.encode, ids)))
        return HalfColumns._make([*columns, id_hashes, array("I", unique)])

    def decision_columns(self) -> list[npt.NDArray[np.int64]]:
        """The decisions, a column per field."""
        table = np.array(self.decisions, dtype=np.int64)
        return [np.ascontiguousarray(column) for column in table.T]


class HalfColumns(NamedTuple):
    """Rows of one request each, a column per field."""

    log_offset: array[int]
    size: array[int]
    crc: array[int]
    queue: array[int]
    tags: array[int]
    stored_at_ms: array[int]
    next_at_ms: array[int]
    origin: array[int]
    id_hash: array[int]
    unique: array[int]


class Replayer:
    """Feeds frames to a store that nobody else uses yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gathered = Gathered()
        self._first = store.table.end
        self._is_simple = False
        self._look_around()

    def _look_around(self) -> None:
        """Whether all that is known is rows in chunks; only other records can change that."""
        core, table = self._store.core, self._store.table
        known = (core.parts, core.delays, core.moved_at_ms, core.resumed_at_ms)
        self._is_simple = not (any(known) or table.survivors.rows or table.lacks_rows)
        self._first = table.end

    def feed(self, frame: Frame) -> None:
        """Apply a frame, or keep it for later."""
        records = frame.records
        if len(records) == 1 and self._is_simple:
            record = records[0]
            if type(record) is Prepared:
                if self._add_half(record, frame):
                    return
            elif type(record) is Decided and self._add_decision(record, frame):
                return
        self.flush()
        where = Where(frame.log_offset, frame.messages, frame.stored_at_ms)
        self._store.apply(records, where)
        self._look_around()

    def _add_half(self, record: Prepared, frame: Frame) -> bool:
        placed = record.placed
        halves = self._gathered.halves
        first = record.first
        if (
            len(placed.sizes) != 1
            or record.head != first
            or first != self._first + len(halves)
            or record.deliver_after_ms
        ):
            return False
        log_offset = frame.log_offset + HEAD_BYTES
        halves.append(
            (
                log_offset,
                placed.sizes[0],
                placed.crcs[0],
                placed.queues[0],
                placed.tags[0],
                frame.stored_at_ms,
                record.next_check_at_ms,
                record.origin,
                record.transaction_id,
                placed.unique[0],
            )
        )
        for key in placed.keys:
            self._gathered.keys.append((key, log_offset))
        if len(halves) >= GATHERED_MAX:
            self.flush()
        return True

    def _add_decision(self, record: Decided, frame: Frame) -> bool:
        row, ranges, given = record.head, record.ranges, record.given
        if len(ranges) != 1 or ranges[0][1] != 1 or record.waiting:
            return False
        is_gathered = self._first <= row < self._first + len(self._gathered.halves)
        # A row that outlived its chunk, when the replay last put what it had into files.
        if not (is_gathered or self._store.table.is_live(row)):
            return False
        queue, queue_offset = (given[0].queue, given[0].first) if given else (-1, -1)
        self._gathered.decisions.append(
            (row, frame.log_offset, frame.stored_at_ms, record.state, queue, queue_offset)
        )
        return True

    def flush(self) -> None:
        """Apply what was gathered: rows, then decisions, then what they make visible."""
        gathered, self._gathered = self._gathered, Gathered()
        store = self._store
        publish_all(store)
        if gathered.halves:
            columns = gathered.half_columns()
            insert_singles(store.table, self._first, columns)
            store.keys.extend(columns.unique, array("Q", columns.log_offset))
            if gathered.keys:
                store.keys.extend(*zip(*gathered.keys, strict=True))
            self._first = store.table.end
        if gathered.decisions:
            rows, op_offsets, at_ms, states, queues, offsets = gathered.decision_columns()
            decide_singles(store.table, rows, states, op_offsets)
            self._show(rows, at_ms, queues, offsets)

    def _show(self, rows: Rows, at_ms: Rows, queues: Rows, offsets: Rows) -> None:
        shown = np.flatnonzero(queues >= 0)
        order = shown[np.argsort(queues[shown], kind="stable")]
        if not len(order):
            return
        entries = gather(self._store.table, rows[order])
        at_ms, offsets, queues = at_ms[order], offsets[order], queues[order]
        borders = np.flatnonzero(queues[1:] != queues[:-1]) + 1
        for start, end in pairwise([0, *borders.tolist(), len(queues)]):
            here = slice(start, end)
            columns = Columns(
                log_offsets=array("q", entries["log_offset"][here].tobytes()),
                sizes=array("I", entries["size"][here].tobytes()),
                tags=array("i", entries["tags"][here].tobytes()),
                crcs=array("I", entries["crc"][here].tobytes()),
                visible_at_ms=array("q", at_ms[here].tobytes()),
            )
            queue = int(queues[start])
            self._store.queues[queue].extend(int(offsets[start]), columns)
            self._store.core.queue_ends[queue] = int(offsets[end - 1]) + 1


def insert_singles(table: StateTable, first: int, columns: HalfColumns) -> None:
    """Add many requests of one row each."""
    assert first == table.end, "rows are added in order"
    done = 0
    while done < len(columns.size):
        done += table.chunk_for(first + done).insert_singles(columns, done)
    table.end += done
    table.ids.add_many(np.frombuffer(columns.id_hash, dtype=np.uint32))
    if table.ids.is_full:
        table.rebuild_filter()


def decide_singles(table: StateTable, rows: Rows, states: Rows, op_offsets: Rows) -> None:
    """Set the state of many live rows for good."""
    bases = rows - rows % table.chunk_rows
    for base in np.unique(bases).tolist():
        here = np.flatnonzero(bases == base)
        table.chunks[base].decide_rows(rows[here] - base, states[here])
    table.ops.update(
        zip(rows.tolist(), zip(repeat(1), op_offsets.tolist(), strict=False), strict=True)
    )


def gather(table: StateTable, rows: Rows) -> dict[str, Rows]:
    """What consume queue entries need of these live rows, in their order."""
    bases = rows - rows % table.chunk_rows
    columns = {
        name: np.zeros(len(rows), dtype=STATE_ROW[name])
        for name in ("log_offset", "size", "tags", "crc")
    }
    for base in np.unique(bases).tolist():
        chunk = table.chunks[base]
        here = np.flatnonzero(bases == base)
        at = rows[here] - base
        for name, column in columns.items():
            column[here] = chunk.view(name)[at]
        for row, location in chunk.locations.items():
            columns["log_offset"][rows == row] = location
    return columns


def publish_all(store: Store) -> None:
    """Hand all entries to their queues."""
    while not store.dispatcher.is_idle:
        store.publish()
