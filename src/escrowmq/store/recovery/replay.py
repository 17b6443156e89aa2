"""Applies an existing log, many frames at a time.

Most of a log is transactions of one message: a half message, then its commit. To apply them one by
one would take a restart ten times as long as reading them. So runs of them are gathered as raw
records and applied as columns: first all rows, then all decisions, then all queue entries. That
gives the same state, because records hold absolute values and a decision follows its half message.
Every other record is applied as usual, after everything gathered before it.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.protocol.message.stored_message import record_crc
from escrowmq.store.log.frames import HEAD_BYTES, are_intact, decode_records, each_vouched
from escrowmq.store.log.lone_frames import (
    DECISION,
    DECISION_BYTES,
    DECISION_KIND,
    HALF,
    HALF_BYTES,
    HALF_KIND,
    MARK,
    unpack_vouched,
)
from escrowmq.store.queue.consume_queue import EntryColumns
from escrowmq.store.queue.entries import gather
from escrowmq.transaction.core import Where
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.disk.disk import Bytes
    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.store import Store
    from escrowmq.store.table.state_table import StateTable
    from escrowmq.transaction.memory.origins import Origins
    from escrowmq.transaction.records import Record

GATHERED_MAX = 4_096


class Gathered:
    """Raw records of one kind, and where and when each was written."""

    def __init__(self) -> None:
        self.records: list[Bytes] = []
        self.offsets = array("q")
        self.at_ms = array("q")
        #: Further keys of the records; each record states how many it has.
        self.keys: list[Bytes] = []

    def columns(self, kind: np.dtype[np.void]) -> tuple[Rows, Rows, Rows]:
        """Return the records, their offsets and their times."""
        return (
            np.frombuffer(b"".join(self.records), dtype=kind),
            np.frombuffer(self.offsets, dtype=np.int64),
            np.frombuffer(self.at_ms, dtype=np.int64),
        )


class Replayer:
    """Applies frames to a store that does not serve yet."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._halves = Gathered()
        self._decisions = Gathered()
        #: The flushed offset that the frames so far state, and the number of frames.
        self.flushed = 0
        self.frames = 0

    def feed(self, block: memoryview, log_offset: int) -> int:
        """Apply or gather the frames at the start of a block; return their length in bytes."""
        store = self._store
        end, at_ms, flushed, frames = log_offset, store.last_at_ms, self.flushed, 0
        is_whole = self._is_whole()
        for place, length, records_at, stored_at_ms, known_flushed, tail in each_vouched(
            block, 0, log_offset, store.seed
        ):
            messages = block[end - log_offset + HEAD_BYTES : end - log_offset + records_at]
            if not (is_whole and self._gather(tail, messages, place, stored_at_ms)):
                records = decode_records(tail, place)
                if not are_intact(messages, 0, len(messages), records):
                    break
                self.flush()
                self.apply(records, Where(place, place + HEAD_BYTES, stored_at_ms))
                is_whole = self._is_whole()
            end += length
            frames += 1
            at_ms, flushed = stored_at_ms, known_flushed
        store.last_at_ms = at_ms
        self.flushed = max(self.flushed, flushed)
        self.frames += frames
        return end - log_offset

    def _is_whole(self) -> bool:
        # If rows are missing, each record is applied alone.
        return not (self._store.table.lacks_rows or self._store.lost.ranges)

    def apply(self, records: list[Record], where: Where) -> None:
        """Apply the records of a frame that cannot be gathered."""
        self._store.apply(records, where)

    def _gather(self, tail: Bytes, message: memoryview, place: int, at_ms: int) -> bool:
        """Gather a record for later; False if it cannot be gathered or is damaged."""
        if len(tail) < DECISION_BYTES or tail[0] != MARK:
            return False
        kind = tail[1]
        if kind == DECISION_KIND and not message:
            gathered = self._decisions
            gathered.records.append(tail[:DECISION_BYTES])
        elif kind == HALF_KIND and len(tail) >= HALF_BYTES:
            key_count, size, crc = unpack_vouched(tail)
            if size != len(message) or record_crc(message) != crc:
                return False
            gathered = self._halves
            gathered.records.append(tail[:HALF_BYTES])
            if key_count:
                gathered.keys.append(tail[HALF_BYTES : HALF_BYTES + 4 * key_count])
            place += HEAD_BYTES
        else:
            return False
        gathered.offsets.append(place)
        gathered.at_ms.append(at_ms)
        if len(gathered.offsets) >= GATHERED_MAX:
            self.flush()
        return True

    def flush(self) -> None:
        """Apply what was gathered: rows, then decisions, then queue entries."""
        store = self._store
        publish_all(store)
        if self._halves.records:
            halves, offsets, at_ms = self._halves.columns(HALF)
            insert_singles(store.table, halves, offsets, at_ms)
            note_uses(store.core.names.origins, halves["origin"], offsets, at_ms)
            keys = np.frombuffer(b"".join(self._halves.keys), dtype=np.uint32)
            for hashes, places in (
                (halves["unique"], offsets),
                (keys, np.repeat(offsets, halves["key_count"])),
            ):
                store.keys.extend(array("I", hashes.tobytes()), array("Q", places.tobytes()))
            self._halves = Gathered()
        if self._decisions.records:
            decisions, op_offsets, at_ms = self._decisions.columns(DECISION)
            decide_singles(store, decisions, op_offsets)
            is_shown = decisions["queue"] >= 0
            show(store, decisions[is_shown], at_ms[is_shown])
            self._decisions = Gathered()


def insert_singles(table: StateTable, halves: Rows, log_offsets: Rows, at_ms: Rows) -> None:
    """Add many requests of one row each."""
    rows = halves["row"]
    assert rows[0] == table.end, "rows are added in order"
    assert rows[-1] - rows[0] == len(rows) - 1, "rows are added in order"
    done = 0
    while done < len(halves):
        chunk = table.chunk_for(table.end + done)
        done += chunk.insert_singles(halves[done:], log_offsets[done:], at_ms[done:])
    table.end += done
    table.ids.add_many(halves["id_hash"])
    if table.ids.is_full:
        table.rebuild_filter()


def note_uses(origins: Origins, numbers: Rows, log_offsets: Rows, at_ms: Rows) -> None:
    """Note the last use of each origin."""
    seen, places = np.unique(numbers[::-1], return_index=True)
    for number, place in zip(seen.tolist(), (len(numbers) - 1 - places).tolist(), strict=True):
        origins.use(number, int(at_ms[place]), int(log_offsets[place]) - HEAD_BYTES)


def decide_singles(store: Store, decisions: Rows, op_offsets: Rows) -> None:
    """Set the final state of many rows, and drop what the core kept while they were undecided."""
    table, core = store.table, store.core
    rows, states = decisions["row"], decisions["state"]
    is_live = np.zeros(len(rows), dtype=np.bool_)
    for base, here in table.by_chunk(rows):
        table.chunks[base].decide_rows(rows[here] - base, states[here])
        is_live[here] = True
    table.ops.add_many(rows[is_live], op_offsets[is_live])
    for index in np.flatnonzero(~is_live).tolist():
        table.decide(int(rows[index]), 1, State(int(states[index])), int(op_offsets[index]))
    for known in (core.parts, core.delays, core.resumed_at_ms, core.carried_at_ms):
        if known:
            for row in rows.tolist():
                known.pop(row, None)


def show(store: Store, decisions: Rows, at_ms: Rows) -> None:
    """Hand the entries of committed rows to their queues."""
    order = np.argsort(decisions["queue"], kind="stable")
    decisions, at_ms = decisions[order], at_ms[order]
    entries = gather(store.table, decisions["row"])
    queues = decisions["queue"]
    borders = np.flatnonzero(queues[1:] != queues[:-1]) + 1
    for start, end in pairwise([0, *borders.tolist(), len(queues)]):
        if start == end:
            break
        here = slice(start, end)
        columns = EntryColumns(
            log_offsets=array("q", entries["log_offset"][here].tobytes()),
            sizes=array("I", entries["size"][here].tobytes()),
            tags=array("i", entries["tags"][here].tobytes()),
            crcs=array("I", entries["crc"][here].tobytes()),
            visible_at_ms=array("q", at_ms[here].tobytes()),
        )
        queue, first = int(queues[start]), int(decisions["queue_offset"][start])
        # The queue is missing if the checkpoint under this replay already has it deleted.
        if queue in store.queues:
            store.queues[queue].extend(first, columns)
            store.core.queue_ends[queue] = first + end - start


def publish_all(store: Store) -> None:
    """Publish until every queue has its entries."""
    while not store.dispatcher.is_idle:
        store.publish()
