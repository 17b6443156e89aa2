"""Applying a log that was written before, many frames at a time.

Most of a log is transactions of one message: a half message, then its commit.  Applied one by one
they would cost a restart ten times what reading them costs, so runs of them are gathered and
applied as columns: first all rows, then all decisions, then all queue entries.  That gives the
same state, because records hold absolute values and a decision follows its half message.  Every
other record is applied as it always is, after what was gathered before it.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from escrowmq.protocol.stored_message import record_crc
from escrowmq.store.consume_queue import Columns
from escrowmq.store.frames import HEAD_BYTES, are_intact, each_vouched
from escrowmq.store.rows import STATE_ROW
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import Decided, Prepared

if TYPE_CHECKING:
    from escrowmq.store.rows import Rows
    from escrowmq.store.state_table import StateTable
    from escrowmq.store.store import Store
    from escrowmq.transaction.records import Record

GATHERED_MAX = 4_096

#: A half message that came alone.
HALF = np.dtype(
    [
        ("log_offset", "<i8"),
        ("stored_at_ms", "<i8"),
        ("next_at_ms", "<i8"),
        ("size", "<u4"),
        ("crc", "<u4"),
        ("origin", "<u4"),
        ("queue", "<u4"),
        ("tags", "<i4"),
        ("id_hash", "<u4"),
        ("unique", "<u4"),
    ]
)
#: Its decision; a queue of -1 if it was rolled back.
DECISION = np.dtype(
    [
        ("row", "<i8"),
        ("op_offset", "<i8"),
        ("at_ms", "<i8"),
        ("queue_offset", "<i8"),
        ("queue", "<i8"),
        ("state", "u1"),
    ]
)
_pack_half = Struct("<qqqIIIIiII").pack
_pack_decision = Struct("<qqqqqB").pack
assert HALF.itemsize == len(_pack_half(*[0] * 10))
assert DECISION.itemsize == len(_pack_decision(*[0] * 6))


class Replayer:
    """Feeds frames to a store that nobody else uses yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Rows of ``HALF`` and of ``DECISION``, and further keys with their log offsets.
        self._halves = bytearray()
        self._decisions = bytearray()
        self._keys: list[int] = []
        #: The row of the first half message that is gathered, and of the next one that will be.
        self._first = self._next = store.table.end
        self._is_simple = False
        #: What the frames so far said was flushed, and how many they were.
        self.flushed = 0
        self.frames = 0
        self._look_around()

    def _look_around(self) -> None:
        """Whether all that is known is rows in chunks; only other records can change that."""
        core, table = self._store.core, self._store.table
        known = (core.parts, core.delays, core.moved_at_ms, core.resumed_at_ms)
        self._is_simple = not (any(known) or table.survivors.rows or table.lacks_rows)
        self._first = self._next = table.end

    def feed(self, block: memoryview, log_offset: int) -> int:
        """Apply the frames at the start of a block, or keep them for later; how long they are."""
        at = 0
        for place, length, records_at, at_ms, flushed, records in each_vouched(
            block, 0, log_offset, self._store.seed
        ):
            record = records[0] if self._is_simple and len(records) == 1 else None
            if type(record) is Decided and records_at == HEAD_BYTES:
                is_gathered = self._add_decision(record, place, at_ms)
            elif type(record) is Prepared:
                message = block[at + HEAD_BYTES : at + records_at]
                is_gathered = self._add_half(record, place + HEAD_BYTES, at_ms, message)
            else:
                is_gathered = False
            if not is_gathered:
                if not are_intact(block, at + HEAD_BYTES, at + records_at, records):
                    break
                self.flush()
                self.apply(records, Where(place, place + HEAD_BYTES, at_ms))
            at += length
            self.frames += 1
            self._store.last_at_ms = at_ms
            if flushed > self.flushed:  # noqa: PLR1730 - max() would take longer than the rest
                self.flushed = flushed
        return at

    def apply(self, records: list[Record], where: Where) -> None:
        """Apply the records of a frame that cannot be gathered."""
        self._store.apply(records, where)
        self._look_around()

    def _add_half(self, record: Prepared, log_offset: int, at_ms: int, message: memoryview) -> bool:
        placed, first = record.placed, record.first
        sizes = placed.sizes
        if (
            first != self._next
            or record.head != first
            or len(sizes) != 1
            or sizes[0] != len(message)
            or record.deliver_after_ms
            or record_crc(message) != placed.crcs[0]
        ):
            return False
        self._halves += _pack_half(
            log_offset,
            at_ms,
            record.next_check_at_ms,
            sizes[0],
            placed.crcs[0],
            record.origin,
            placed.queues[0],
            placed.tags[0],
            crc32(record.transaction_id.encode()),
            placed.unique[0],
        )
        for key in placed.keys:
            self._keys += (key, log_offset)
        self._next = first + 1
        if self._next - self._first >= GATHERED_MAX:
            self.flush()
        return True

    def _add_decision(self, record: Decided, op_offset: int, at_ms: int) -> bool:
        row, ranges, given = record.head, record.ranges, record.given
        if len(ranges) != 1 or ranges[0][1] != 1 or record.waiting:
            return False
        # A row that outlived its chunk, when the replay last put what it had into files.
        if not (self._first <= row < self._next or self._store.table.is_live(row)):
            return False
        queue, queue_offset = (given[0].queue, given[0].first) if given else (-1, -1)
        self._decisions += _pack_decision(row, op_offset, at_ms, queue_offset, queue, record.state)
        return True

    def flush(self) -> None:
        """Apply what was gathered: rows, then decisions, then what they make visible."""
        store = self._store
        publish_all(store)
        if self._halves:
            halves = np.frombuffer(bytes(self._halves), dtype=HALF)
            insert_singles(store.table, halves)
            store.keys.extend(
                array("I", halves["unique"].tobytes()), array("Q", halves["log_offset"].tobytes())
            )
            store.keys.extend(self._keys[::2], self._keys[1::2])
            self._halves.clear()
            self._keys.clear()
            self._first = store.table.end
        if self._decisions:
            decisions = np.frombuffer(bytes(self._decisions), dtype=DECISION)
            decide_singles(store.table, decisions)
            show(store, decisions[decisions["queue"] >= 0])
            self._decisions.clear()


def insert_singles(table: StateTable, halves: Rows) -> None:
    """Add many requests of one row each."""
    done = 0
    while done < len(halves):
        done += table.chunk_for(table.end + done).insert_singles(halves[done:])
    table.end += done
    table.ids.add_many(halves["id_hash"])
    if table.ids.is_full:
        table.rebuild_filter()


def decide_singles(table: StateTable, decisions: Rows) -> None:
    """Set the state of many live rows for good."""
    rows, states = decisions["row"], decisions["state"]
    bases = rows - rows % table.chunk_rows
    for base in np.unique(bases).tolist():
        here = np.flatnonzero(bases == base)
        table.chunks[base].decide_rows(rows[here] - base, states[here])
    table.replayed_ops.append((rows, decisions["op_offset"]))


def show(store: Store, decisions: Rows) -> None:
    """Hand the entries of committed rows to their queues."""
    decisions = decisions[np.argsort(decisions["queue"], kind="stable")]
    entries = gather(store.table, decisions["row"])
    queues = decisions["queue"]
    borders = np.flatnonzero(queues[1:] != queues[:-1]) + 1
    for start, end in pairwise([0, *borders.tolist(), len(queues)]):
        if start == end:
            break
        here = slice(start, end)
        columns = Columns(
            log_offsets=array("q", entries["log_offset"][here].tobytes()),
            sizes=array("I", entries["size"][here].tobytes()),
            tags=array("i", entries["tags"][here].tobytes()),
            crcs=array("I", entries["crc"][here].tobytes()),
            visible_at_ms=array("q", decisions["at_ms"][here].tobytes()),
        )
        queue, first = int(queues[start]), int(decisions["queue_offset"][start])
        store.queues[queue].extend(first, columns)
        store.core.queue_ends[queue] = first + end - start


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
