"""A run of state-table rows in memory, as columns: no Python object per row.

Single rows are read and written through ``array``. Scans and ranges use numpy views of the same
memory. A row takes 52 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec
import numpy as np

from escrowmq.store.disk.rows import STATE_ROW, Rows
from escrowmq.store.queue.consume_queue import EntryColumns
from escrowmq.store.table.frozen_chunk import FrozenChunk
from escrowmq.store.table.release_order import NO_RELEASES, ReleaseOrder
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import ALONE, FIRST, SPAN_MAX

if TYPE_CHECKING:
    from escrowmq.transaction.table import NewRows

#: Column name and array type code.
COLUMNS = (
    ("log_offset", "q"),
    ("stored_at_ms", "q"),
    ("next_at_ms", "q"),
    ("size", "I"),
    ("crc", "I"),
    ("origin", "I"),
    ("queue", "I"),
    ("tags", "i"),
    ("part", "H"),
    ("state", "B"),
    ("checks_sent", "B"),
    ("id_hash", "I"),
)


def _column(typecode: str, rows: int) -> array[int]:
    # Repetition allocates the exact size. Appending would over-allocate, and a column never grows.
    return array(typecode, (0,)) * rows


#: Values of ``part`` in a request's rows after the first: the distance to the first row.
_DISTANCES = array("H", range(SPAN_MAX + 1))
#: Columns that the record of a lone half message fills.
_SINGLES = ("next_at_ms", "size", "crc", "origin", "queue", "tags", "id_hash")
# Plain integers, because comparing with an enum takes several times as long.
_PREPARED = int(State.PREPARED)
_PARKED = int(State.PARKED)
_COMMITTED = int(State.COMMITTED)
_UNDECIDED = (_PREPARED, _PARKED)


class Checks(msgspec.Struct, kw_only=True, gc=False):
    """Counts of undecided transactions that are not parked, and when their checks are due."""

    due: int = 0
    #: When the newest of the due checks came due.
    newest_due_at_ms: int = 0
    #: When the next check comes due.
    next_due_at_ms: int = NEVER
    undecided: int = 0
    #: How many of the undecided are attempts of Spark sinks.
    sink_attempts: int = 0


class Chunk:
    """Rows ``[base, base + count)``; rows before ``base + skipped`` are not held here."""

    log_offset: array[int]
    stored_at_ms: array[int]
    next_at_ms: array[int]
    size: array[int]
    crc: array[int]
    origin: array[int]
    queue: array[int]
    tags: array[int]
    part: array[int]
    state: array[int]
    checks_sent: array[int]
    id_hash: array[int]

    def __init__(self, base: int, rows_max: int) -> None:
        self.base = base
        self.rows_max = rows_max
        self.count = 0
        self.skipped = 0
        self._views = {}
        for name, typecode in COLUMNS:
            column = _column(typecode, rows_max)
            setattr(self, name, column)
            self._views[name] = np.frombuffer(column, dtype=STATE_ROW[name])
        #: Rows that are undecided, parked or not yet visible.
        self.needed = 0
        #: Lower bound of the time at which the first row is due.
        self.due_from_ms = NEVER
        #: The same bound for committed rows that are not in ``releases``.
        self.release_from_ms = NEVER
        self.releases = NO_RELEASES
        #: Lower bound of the time at which the first check is due that the last look did not see.
        self.check_from_ms = NEVER
        #: Result of the last look; None once a row has changed.
        self.checks: Checks | None = None
        #: Log offset to which each row's bytes were carried, or 0; None while no row was carried.
        self.carried: array[int] | None = None
        #: Whether the chunk differs from its file.
        self.is_dirty = False

    def view(self, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return a numpy view of a column's rows."""
        return self._views[name][: self.count]

    def half_offsets(self) -> Rows:
        """Return the half offset of each row."""
        return np.arange(self.base, self.base + self.count)

    def location(self, at: int) -> int:
        """Return the log offset of a row's bytes."""
        return (self.carried is not None and self.carried[at]) or self.log_offset[at]

    def locations(self, at: int = 0, end: int | None = None) -> Rows:
        """Return the log offsets of the bytes of rows [at, end)."""
        stored_at = self.view("log_offset")[at:end]
        if self.carried is None:
            return stored_at
        carried = np.frombuffer(self.carried, dtype=np.int64)[: self.count][at:end]
        return np.where(carried, carried, stored_at)

    def move(self, at: int, location: int) -> None:
        """Note the log offset to which a row's bytes were carried forward."""
        if self.carried is None:
            self.carried = _column("q", self.rows_max)
        self.carried[at] = location
        self.is_dirty = True

    def insert_one(self, rows: NewRows, id_hash: int) -> None:
        """Add the only row of a request, with the hash of its transaction id."""
        at = self.count
        placed = rows.placed
        next_at_ms = rows.next_at_ms[0] if rows.next_at_ms else NEVER
        self.log_offset[at] = rows.where.messages
        self.stored_at_ms[at] = rows.where.at_ms
        self.next_at_ms[at] = next_at_ms
        self.size[at] = placed.sizes[0]
        self.crc[at] = placed.crcs[0]
        self.origin[at] = rows.origin
        self.queue[at] = placed.queues[0]
        self.tags[at] = placed.tags[0]
        self.part[at] = ALONE
        self.state[at] = rows.state
        self.id_hash[at] = id_hash
        self.count = at + 1
        self.needed += 1
        self._expect(next_at_ms, rows.state)
        self.is_dirty = True

    def insert_many(self, rows: NewRows, skip: int, count: int) -> None:
        """Add rows [skip, skip + count) of a request; the chunk must have room for them."""
        at, end = self.count, self.count + count
        placed, next_at_ms = rows.placed, rows.next_at_ms
        sizes, crcs, queues, tags = placed.sizes, placed.crcs, placed.queues, placed.tags
        log_offset = rows.where.messages
        if count < len(sizes):
            log_offset += sum(sizes[:skip])
            this = slice(skip, skip + count)
            sizes, crcs, queues, tags = sizes[this], crcs[this], queues[this], tags[this]
            next_at_ms = next_at_ms[this]
        # Array slices, because numpy calls would take twice as long for a hundred rows.
        self.size[at:end] = array("I", sizes)
        self.crc[at:end] = array("I", crcs)
        self.queue[at:end] = array("I", queues)
        self.tags[at:end] = array("i", tags)
        self.log_offset[at:end] = array("q", accumulate(sizes[:-1], initial=log_offset))
        self.part[at:end] = _DISTANCES[skip : skip + count]
        if not skip:
            self.part[at] = FIRST | len(placed.sizes)
        self.stored_at_ms[at:end] = array("q", (rows.where.at_ms,)) * count
        self.origin[at:end] = array("I", (rows.origin,)) * count
        if rows.state != _PREPARED:
            self.state[at:end] = array("B", (rows.state,)) * count
        self.id_hash[at:end] = array("I", (crc32(rows.transaction_id.encode()),)) * count
        self.next_at_ms[at:end] = array("q", (NEVER,)) * count
        # ``next_at_ms`` may be shorter than the rows; the remaining rows are never due.
        if next_at_ms:
            self.next_at_ms[at : at + len(next_at_ms)] = array("q", next_at_ms)
        self.count = end
        self.needed += count
        self._expect(min(next_at_ms, default=NEVER), rows.state)
        self.is_dirty = True

    def _expect(self, at_ms: int, state: int) -> None:
        """Lower the bounds for a row in this state that is due at ``at_ms``."""
        self.checks = None
        self.due_from_ms = min(self.due_from_ms, at_ms)
        if state == _PREPARED:
            self.check_from_ms = min(self.check_from_ms, at_ms)
        elif state == _COMMITTED and at_ms < self.release_from_ms:
            self.release_from_ms = at_ms

    def skip(self, count: int, log_offset: int, at_ms: int) -> None:
        """Add lost rows, which have a size of 0."""
        at, end = self.count, self.count + count
        self.log_offset[at:end] = array("q", (log_offset,)) * count
        self.stored_at_ms[at:end] = array("q", (at_ms,)) * count
        self.next_at_ms[at:end] = array("q", (NEVER,)) * count
        self.state[at:end] = array("B", (State.ROLLED_BACK,)) * count
        self.count = end
        self.is_dirty = True

    def insert_singles(self, halves: Rows, log_offsets: Rows, stored_at_ms: Rows) -> int:
        """Add as many of these one-row requests as there is room for, and return their count."""
        at = self.count
        count = min(len(halves), self.rows_max - at)
        end = at + count
        for name in _SINGLES:
            self._views[name][at:end] = halves[name][:count]
        self._views["log_offset"][at:end] = log_offsets[:count]
        self._views["stored_at_ms"][at:end] = stored_at_ms[:count]
        self._views["part"][at:end] = ALONE
        self.count = end
        self.needed += count
        self._expect(int(halves["next_at_ms"][:count].min()), _PREPARED)
        self.is_dirty = True
        return count

    def decide_rows(self, at: Rows, states: Rows | State) -> None:
        """Set the final state of these rows, one each or one for all; no row is named twice."""
        state, next_at_ms = self._views["state"], self._views["next_at_ms"]
        before = state[at]
        is_undecided = (before == _PREPARED) | (before == _PARKED) | (next_at_ms[at] != NEVER)
        state[at] = states
        next_at_ms[at] = NEVER
        self.needed -= int(np.count_nonzero(is_undecided))
        self.checks = None
        self.is_dirty = True

    def _needs(self, at: int, end: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        state, next_at_ms = self._views["state"][at:end], self._views["next_at_ms"][at:end]
        # Rolled-back rows are never due, so a decided row that is due is committed.
        needs: Rows = (state == _PREPARED) | (state == _PARKED) | (next_at_ms != NEVER)
        return needs

    def _needed_in(self, at: int, end: int) -> int:
        is_held = self.state[at:end].count(_PREPARED) == end - at
        return end - at if is_held else int(np.count_nonzero(self._needs(at, end)))

    def set_state(self, at: int, end: int, state: State, *, decided: bool) -> None:
        """Set the state of rows [at, end); with ``decided`` they are never due again."""
        if end - at == 1:
            before = int(self._is_needed(at))
            self.state[at] = state
            if decided:
                self.next_at_ms[at] = NEVER
            self.needed += (not decided) - before
        else:
            before = self._needed_in(at, end)
            self.state[at:end] = array("B", (state,)) * (end - at)
            if decided:
                self.next_at_ms[at:end] = array("q", (NEVER,)) * (end - at)
            self.needed += (0 if decided else end - at) - before
        self.checks = None
        self.is_dirty = True

    def set_next(self, at: int, at_ms: int) -> None:
        """Set when a row is due next."""
        before = self._is_needed(at)
        self.next_at_ms[at] = at_ms
        self.needed += self._is_needed(at) - before
        self._expect(at_ms, self.state[at])
        self.is_dirty = True

    def _is_needed(self, at: int) -> bool:
        state = self.state[at]
        return state in _UNDECIDED or self.next_at_ms[at] != NEVER

    def columns(self, at: int, end: int, visible_at_ms: int) -> EntryColumns:
        """Return the consume queue entries of rows [at, end)."""
        return EntryColumns(
            array("q", self.locations(at, end).tobytes()),
            self.size[at:end],
            self.tags[at:end],
            self.crc[at:end],
            array("q", (visible_at_ms,)) * (end - at),
        )

    def needed_below(self, log_offset: int) -> Rows:
        """Return the indices of needed rows whose bytes lie below this log offset."""
        is_below = self.locations(self.skipped) < log_offset
        hits: Rows = np.flatnonzero(self._needs(self.skipped, self.count) & is_below)
        return hits + self.skipped

    def needed_bytes(self) -> int:
        """Return the stored bytes of all needed rows."""
        sizes = self.view("size")[self.skipped :]
        if self.needed == len(sizes):
            return int(sizes.sum(dtype=np.int64))
        return int(sizes[self._needs(self.skipped, self.count)].sum(dtype=np.int64))

    def origins_needed(self) -> list[int]:
        """Return the origins of rows that are still needed."""
        at, end = self.skipped, self.count
        is_needed = self._needs(at, end) & (self.view("size")[at:end] > 0)
        origins: list[int] = np.unique(self.view("origin")[at:end][is_needed]).tolist()
        return origins

    def candidates(self, wanted: int) -> list[int]:
        """Return first rows of requests whose transaction id has this hash, newest first."""
        is_first = self.view("part") >= FIRST
        hits = np.flatnonzero((self.view("id_hash") == wanted) & is_first).tolist()
        return [self.base + hit for hit in reversed(hits) if hit >= self.skipped]

    def row_at(self, log_offset: int) -> int | None:
        """Return the row of the half message first stored at exactly this log offset, or None."""
        at = bisect_left(self.log_offset, log_offset, self.skipped, self.count)
        return self.base + at if at < self.count and self.log_offset[at] == log_offset else None

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Return up to ``limit`` rows that are due now."""
        if self.due_from_ms > now_ms:
            return []
        next_at_ms = self.view("next_at_ms")
        hits = np.flatnonzero(next_at_ms <= now_ms)[:limit]
        if not len(hits):
            self.due_from_ms = int(next_at_ms.min())
        return [self.base + hit for hit in hits.tolist()]

    def sort_releases(self, until_ms: int) -> None:
        """Sort, by time, the committed rows that become visible by ``until_ms``."""
        next_at_ms, state = self.view("next_at_ms"), self.view("state")
        self.releases = ReleaseOrder(self.base, next_at_ms, state, until_ms)
        self.release_from_ms = self.releases.rest_from_ms

    def next_releases(self, now_ms: int, limit: int) -> tuple[Rows, Rows]:
        """Return the first sorted rows to make visible now, and their times."""
        return self.releases.first(self.view("next_at_ms"), self.view("state"), now_ms, limit)

    def release_rows(self, at: Rows) -> None:
        """Note that these rows are visible, so that they are never due again."""
        next_at_ms, state = self._views["next_at_ms"], self._views["state"]
        was_needed = next_at_ms[at] != NEVER
        is_decided = (state[at] != _PREPARED) & (state[at] != _PARKED)
        next_at_ms[at] = NEVER
        self.needed -= int(np.count_nonzero(was_needed & is_decided))
        self.checks = None
        self.is_dirty = True

    def look_at_checks(self, now_ms: int, sinks: Rows) -> Checks:
        """Count undecided transactions and checks due now; ``sinks`` are Spark sinks' origins."""
        if self.checks is None or self.check_from_ms <= now_ms:
            next_at_ms = self.view("next_at_ms")
            # Only the head of a transaction is ever due.
            is_head = (self.view("state") == _PREPARED) & (next_at_ms != NEVER)
            heads = next_at_ms[is_head]
            is_due = heads <= now_ms
            self.check_from_ms = int(heads[~is_due].min(initial=NEVER))
            self.checks = Checks(
                due=int(np.count_nonzero(is_due)),
                newest_due_at_ms=int(heads[is_due].max(initial=0)),
                next_due_at_ms=self.check_from_ms,
                undecided=len(heads),
                sink_attempts=int(np.count_nonzero(np.isin(self.view("origin")[is_head], sinks))),
            )
        return self.checks

    def frozen(self) -> FrozenChunk:
        """Return a copy of all rows as they are now."""
        columns = {name: self.view(name).copy() for name, _ in COLUMNS}
        return FrozenChunk(base=self.base, columns=columns, locations=self.locations().copy())

    def load(self, rows: Rows) -> None:
        """Load all rows from the file."""
        self.count = len(rows)
        # Rows from before the log's start, when the chunk was created, hold no message.
        self.skipped = int(np.argmax(rows["size"] > 0))
        for name, _ in COLUMNS:
            self.view(name)[:] = rows[name]
        for at in np.flatnonzero(rows["location"] != rows["log_offset"]).tolist():
            self.move(at, int(rows["location"][at]))
        self.is_dirty = False
        self.needed = self._needed_in(self.skipped, self.count)
        self.due_from_ms = self.check_from_ms = int(self.view("next_at_ms").min())
        is_committed = self.view("state") == _COMMITTED
        self.release_from_ms = int(self.view("next_at_ms")[is_committed].min(initial=NEVER))
