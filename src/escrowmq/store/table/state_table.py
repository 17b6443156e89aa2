"""The state table: one fixed-size row per half message, by half offset.

It is a projection of the log. Memory is authoritative; only checkpoints write files, and only with
what the log has flushed. Recent rows, and old ones while many are undecided, live in chunks of
columns. A chunk with hardly any needed row left is dropped: its survivors go to a small map, and
decided rows are read from the file on demand.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from escrowmq.store.disk.rows import STATE_ROW, Rows
from escrowmq.store.table.chunk import Chunk
from escrowmq.store.table.id_filter import IdFilter
from escrowmq.store.table.releases import Releases
from escrowmq.store.table.state_files import StateFiles, StateSnapshot
from escrowmq.store.table.survivors import Survivors
from escrowmq.store.table.undecided import held_in
from escrowmq.store.table.unfiled_ops import UnfiledOps
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import STATES, State
from escrowmq.transaction.table import (
    FIRST,
    HALF_COLUMNS,
    Half,
    HalfColumns,
    HeldRows,
    NewRows,
    first_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from escrowmq.model.message import SentMessage
    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.table.survivor_columns import KeptRows
    from escrowmq.transaction.core import Where
    from escrowmq.transaction.records import Carried, CarriedRow

DROP_SHARE = 64
"""A chunk is dropped when at most one row in this many is still needed."""


_DECIDED = (State.COMMITTED, State.ROLLED_BACK)


class LogReaders(msgspec.Struct, frozen=True):
    """Functions that read the log, where the text of each row is."""

    #: Transaction id and part number of a request, by its first row.
    identity: Callable[[Half], tuple[str, int]]
    #: Whether a stored half holds this message.
    holds: Callable[[Half, SentMessage], bool]
    #: Return the client that decided in the frame at this offset, and when it did.
    decision: Callable[[int], tuple[str, int]]


class StateTable:
    """Every row; the table that the broker gives to the core."""

    def __init__(self, disk: Disk, chunk_rows: int, reading: LogReaders) -> None:
        self.chunk_rows = chunk_rows
        self._reading = reading
        self.files = StateFiles(disk, chunk_rows)
        #: The lowest known row; the map may hold older survivors.
        self.start = 0
        self.end = 0
        #: By base, ascending.
        self.chunks: dict[int, Chunk] = {}
        self.survivors = Survivors()
        self.releases = Releases(self)
        self.ops = UnfiledOps()
        self.ids = IdFilter()
        #: Bases of chunks that leave memory once a checkpoint has written them.
        self._leaving: list[int] = []
        #: Whether rows may be missing in between, lost or deleted; then each is handled alone.
        self.lacks_rows = False

    # Queries.

    def get(self, half_offset: int) -> Half | None:
        """Return the row, or None if it never existed or is gone."""
        chunk = self.chunks.get(half_offset - half_offset % self.chunk_rows)
        if chunk is None:
            survivor = self.survivors.rows.get(half_offset)
            if survivor is not None or not self.start <= half_offset < self.end:
                return survivor
            filed = self.files.half(half_offset)
            return filed if filed.size else None
        at = half_offset - chunk.base
        if not chunk.skipped <= at < chunk.count or not chunk.size[at]:
            return self.survivors.rows.get(half_offset)
        log_offset, carried = chunk.log_offset[at], chunk.carried
        part = chunk.part[at]
        first = half_offset if part & FIRST else half_offset - part
        return Half(
            half_offset=half_offset,
            log_offset=log_offset,
            location=log_offset if carried is None else carried[at] or log_offset,
            size=chunk.size[at],
            crc=chunk.crc[at],
            stored_at_ms=chunk.stored_at_ms[at],
            origin=chunk.origin[at],
            queue=chunk.queue[at],
            tags=chunk.tags[at],
            part=part,
            state=STATES[chunk.state[at]],
            checks_sent=chunk.checks_sent[at],
            next_at_ms=chunk.next_at_ms[at],
            op_offset=self.ops.of_request(first),
        )

    def columns(self, rows: Rows) -> HalfColumns:
        """Return columns of these rows; ``is_here`` tells which rows only a chunk holds."""
        held = {name: np.zeros(len(rows), dtype=STATE_ROW[name]) for name in HALF_COLUMNS}
        for base, here in self.by_chunk(rows):
            at = rows[here] - base
            for name, column in held.items():
                column[here] = self.chunks[base].view(name)[at]
        is_here = held["size"] > 0
        kept = self.survivors.rows
        if kept:
            is_here &= np.fromiter((row not in kept for row in rows.tolist()), dtype=np.bool_)
        return HalfColumns(is_here=is_here, **held)

    def find(self, transaction_id: str) -> int | None:
        """Return the first row of the newest request with exactly this transaction id, if known."""
        wanted = crc32(transaction_id.encode())
        if not self.ids.may_hold(wanted):
            return None
        for candidate in self._candidates(wanted):
            half = self.get(candidate)
            if (
                half is not None
                and half.part & FIRST
                and self._reading.identity(half)[0] == transaction_id
            ):
                return candidate
        return None

    def may_have_id(self, half: Half, transaction_id: str) -> bool:
        """Whether the row may belong to this transaction, judging by its hash.

        A row that only files hold is decided, and any id may match it.
        """
        row, wanted = half.half_offset, crc32(transaction_id.encode())
        if row in self.survivors.rows:
            return row in self.survivors.rows_by_hash.get(wanted, ())
        chunk = self.chunks.get(row - row % self.chunk_rows)
        return chunk is None or chunk.id_hash[row - chunk.base] == wanted

    def _candidates(self, wanted: int) -> Iterator[int]:
        in_chunks = (
            row for chunk in reversed(self.chunks.values()) for row in chunk.candidates(wanted)
        )
        # A survivor may be newer than a row whose chunk could not leave yet.
        kept = sorted(self.survivors.rows_by_hash.get(wanted, ()), reverse=True)
        yield from heapq.merge(in_chunks, kept, reverse=True) if kept else in_chunks

    def row_at(self, log_offset: int) -> int | None:
        """Return the row of the message that was first stored at exactly this log offset."""
        row = self._row_at(log_offset)
        # A lost row has the log offset of the frame that lost it.
        return None if row is None or self.get(row) is None else row

    def _row_at(self, log_offset: int) -> int | None:
        for chunk in reversed(self.chunks.values()):
            if chunk.count > chunk.skipped and chunk.log_offset[chunk.skipped] <= log_offset:
                row = chunk.row_at(log_offset)
                if row is not None:
                    return row
                break
        survivor = self.survivors.row_at(log_offset)
        if survivor is not None:
            return survivor
        row = self.files.row_at(log_offset)
        return row if row is not None and self.start <= row < self.end else None

    def holds(self, half: Half, message: SentMessage) -> bool:
        """Whether the stored half has this message's topic and body."""
        return self._reading.holds(half, message)

    def identity(self, half: Half) -> tuple[str, int]:
        """Return the transaction id and part number, as they were prepared."""
        return self._reading.identity(half)

    def decided_by(self, half: Half) -> tuple[str, int]:
        """Return who decided it, and when."""
        return self._reading.decision(self.op_offset(half))

    def op_offset(self, half: Half) -> int:
        """Return the frame that decided it; -1 if none has, or if it is no longer known."""
        if half.op_offset >= 0:
            return half.op_offset
        # Memory has it until a file does; a row that was carried forward may have no file.
        op_offset = self.ops.of_many(half.half_offset)
        return self.files.op_offset(half.half_offset) if op_offset < 0 else op_offset

    def queues(self, first: int, count: int) -> Sequence[int]:
        """Return the queue of each of these rows."""
        at = first % self.chunk_rows
        chunk = None if self.lacks_rows else self.chunks.get(first - at)
        if chunk is not None and chunk.skipped <= at and at + count <= chunk.count:
            return chunk.queue[at : at + count]
        return [half.queue for half in self._halves(first, count)]

    def sizes(self, first: int, count: int) -> int:
        """Return the total stored bytes of these rows."""
        return sum(half.size for half in self._halves(first, count))

    def held_in(self, queues: Sequence[int], rows_max: int) -> HeldRows:
        """Count what is held in these queues; name at most ``rows_max`` undecided rows."""
        return held_in(self, queues, rows_max)

    def due(self, now_ms: int, limit: int) -> list[int]:
        """Return the rows that are due: undecided ones to check, committed ones to make visible."""
        rows = [half.half_offset for half in self.kept() if half.next_at_ms <= now_ms]
        for chunk in self.chunks.values():
            if len(rows) >= limit:
                break
            rows.extend(chunk.due(now_ms, limit - len(rows)))
        return rows[:limit]

    def releasable(self, now_ms: int, limit: int) -> list[int]:
        """Return committed rows whose time to become visible has come, sorted by time."""
        while self.releases.sort_one(now_ms):
            pass
        return self.releases.first(now_ms, limit)

    def origins_needed(self, origins: set[int]) -> set[int]:
        """Return those of these origins that still have a needed row."""
        kept = self.kept_rows()
        found = set(np.unique(kept.view("origin")[kept.is_needed]).tolist())
        for chunk in self.chunks.values():
            if chunk.needed:
                found.update(chunk.origins_needed())
        return origins & found

    @property
    def needed(self) -> int:
        """Number of rows that are prepared, parked or not yet visible."""
        kept = int(np.count_nonzero(self.kept_rows().is_needed))
        return kept + sum(chunk.needed for chunk in self.chunks.values())

    @property
    def needed_bytes(self) -> int:
        """Stored bytes of the needed rows."""
        # The map already has the needed rows of a chunk that is about to leave.
        staying = (chunk for base, chunk in self.chunks.items() if base not in self._leaving)
        return self.survivors.needed_bytes + sum(
            chunk.needed_bytes() for chunk in staying if chunk.needed
        )

    # Changes. Each sets absolute values, so a repeat changes nothing.

    def insert(self, rows: NewRows) -> None:
        """Add rows at the end."""
        if not self.end and not self.chunks:
            # The log starts here: earlier rows are gone, or were carried forward.
            self.start = self.end = rows.first
        assert rows.first == self.end, "rows are added in order"
        count = len(rows.placed.sizes)
        id_hash = crc32(rows.transaction_id.encode())
        if rows.transaction_id:
            self.ids.add(id_hash)
        chunk = self.chunk_for(self.end)
        if count == 1:
            chunk.insert_one(rows, id_hash)
        else:
            done = min(count, self.chunk_rows - chunk.count)
            chunk.insert_many(rows, 0, done)
            while done < count:
                chunk = self.chunk_for(self.end + done)
                more = min(count - done, self.chunk_rows)
                chunk.insert_many(rows, done, more)
                done += more
        self.end += count
        if self.ids.is_full:
            self.rebuild_filter()

    def skip_to(self, end: int, where: Where) -> None:
        """Add empty rows up to ``end``, which lost frames assigned."""
        if end > self.end:
            self.lacks_rows = True
        if not self.end and not self.chunks:
            self.start = self.end = max(end, 0)
        while self.end < end:
            chunk = self.chunk_for(self.end)
            count = min(end - self.end, self.chunk_rows - chunk.count)
            chunk.skip(count, where.frame, where.at_ms)
            self.end += count

    def end_at_least(self, end: int) -> None:
        """Raise the end to this row: all rows below were assigned, even if none is left."""
        if self.end < end:
            assert not self.chunks, "rows that are left reach the end"
            self.start = self.end = end

    def chunk_for(self, row: int) -> Chunk:
        """Return the chunk for a new row, made if it does not exist."""
        base = row - row % self.chunk_rows
        chunk = self.chunks.get(base)
        if chunk is None:
            chunk = Chunk(base, self.chunk_rows)
            chunk.skipped = chunk.count = row - base
            chunk.view("next_at_ms")[:] = NEVER
            self.chunks[base] = chunk
        return chunk

    def decide(self, first: int, count: int, state: State, op_offset: int) -> None:
        """Set the final state of rows."""
        self.ops.add(first, count, op_offset)
        chunk, at = self.place(first) if count == 1 else (None, 0)
        if chunk is not None and not self.survivors.rows:
            chunk.set_state(at, at + 1, state, decided=True)
        else:
            self.mark(first, count, state)

    def decide_many(self, rows: Rows, state: State, op_offset: int) -> None:
        """Set the final state of requests of one row each; no row is named twice."""
        self.ops.add_many(rows, np.broadcast_to(np.int64(op_offset), rows.shape))
        for base, here in self.by_chunk(rows):
            self.chunks[base].decide_rows(rows[here] - base, state)
        if self.survivors.rows:
            for row in rows.tolist():
                self.survivors.change(row, state=state, next_at_ms=NEVER, op_offset=op_offset)

    def mark(self, first: int, count: int, state: State) -> None:
        """Set the state of rows: parked, resumed, or decided once ``ops`` has the decision."""
        decided = state in _DECIDED
        for chunk, at, end in self.slices(first, count):
            chunk.set_state(at, end, state, decided=decided)
        if self.survivors.rows:
            changes: dict[str, object] = {"state": state}
            if decided:
                changes.update(next_at_ms=NEVER, op_offset=self.ops.of_request(first))
            for row in range(first, first + count):
                self.survivors.change(row, **changes)

    def schedule(self, half_offset: int, at_ms: int) -> None:
        """Set when this row is due next; NEVER when there is nothing more to do."""
        chunk, at = self.place(half_offset)
        if chunk is not None:
            chunk.set_next(at, at_ms)
        # The map also has the rows of a chunk that is about to leave.
        self.survivors.change(half_offset, next_at_ms=at_ms)

    def release(self, rows: Rows) -> None:
        """Mark these rows as visible: there is nothing more to do."""
        for base, here in self.by_chunk(rows):
            self.chunks[base].release_rows(rows[here] - base)
        if self.survivors.rows:
            for row in rows.tolist():
                self.survivors.change(row, next_at_ms=NEVER)

    def count_check(self, half_offset: int, checks_sent: int, next_at_ms: int) -> None:
        """Set the number of back-checks sent, and when the row is due next."""
        chunk, at = self.place(half_offset)
        if chunk is not None:
            chunk.checks_sent[at] = checks_sent
            chunk.set_next(at, next_at_ms)
        self.survivors.change(half_offset, checks_sent=checks_sent, next_at_ms=next_at_ms)

    def restore(self, carried: Carried, location: int) -> None:
        """Set rows that were carried forward; the first one's bytes are at ``location``."""
        placed = carried.placed
        for index, row in enumerate(carried.rows):
            chunk, at = self.place(row.half_offset)
            if chunk is not None:
                chunk.move(at, location)
            if chunk is None or row.half_offset in self.survivors.rows:
                self._restore_survivor(row, location, index, carried)
            location += placed.sizes[index]

    def _restore_survivor(
        self, row: CarriedRow, location: int, index: int, carried: Carried
    ) -> None:
        placed = carried.placed
        # In a replayed log the decision may come before the row itself.
        known = self.survivors.rows.get(row.half_offset)
        op_offset = self.ops.of_request(first_row(row.half_offset, row.part))
        if op_offset < 0 and known is not None:
            op_offset = self.op_offset(known)
        half = Half(
            half_offset=row.half_offset,
            log_offset=row.log_offset,
            location=location,
            size=placed.sizes[index],
            crc=placed.crcs[index],
            stored_at_ms=row.stored_at_ms,
            origin=row.origin,
            queue=placed.queues[index],
            tags=placed.tags[index],
            part=row.part,
            state=STATES[row.state],
            checks_sent=row.checks_sent,
            next_at_ms=row.next_at_ms,
            op_offset=op_offset,
        )
        id_hash = crc32(row.transaction_id.encode())
        self.survivors.keep(half, id_hash)
        self.ids.add(id_hash)

    # Files.

    def snapshot(self, at_ms: int, id_window_ms: int) -> StateSnapshot:
        """Return what a checkpoint must write, and which chunks may then be dropped."""
        changed = {}
        dropped = []
        for base, chunk in self.chunks.items():
            if chunk.is_dirty:
                changed[base] = chunk.frozen()
                chunk.is_dirty = False
            if (
                chunk.count == self.chunk_rows
                and chunk.needed <= max(1, self.chunk_rows // DROP_SHARE)
                and chunk.stored_at_ms[chunk.count - 1] + id_window_ms < at_ms
            ):
                dropped.append(base)
        for base in dropped:
            self._drop(base)
        self._leaving = dropped
        return StateSnapshot(
            chunks=changed,
            survivors=self.survivors.to_save(),
            dropped=dropped,
            ops=self.ops.freeze(),
        )

    def _drop(self, base: int) -> None:
        """Put a chunk's needed rows into the map; the chunk itself stays until it is on disk."""
        chunk = self.chunks[base]
        # Due checks that were seen in the chunk must not count as new in the map.
        unseen_from_ms = min(self.survivors.check_from_ms, chunk.check_from_ms)
        for at in chunk.needed_below(NEVER).tolist():
            half = self.get(base + at)
            assert half is not None
            self.survivors.keep(half, chunk.id_hash[at])
        self.survivors.check_from_ms = unseen_from_ms

    def install(self, snapshot: StateSnapshot) -> None:
        """Drop from memory what need not stay there, now that files hold the snapshot."""
        # Decided rows of the map have their own op offset.
        self.ops.forget_frozen()
        self.survivors.saved()
        self._leaving = []
        for base in snapshot.dropped:
            # The id filter keeps their ids until it is rebuilt.
            del self.chunks[base]

    def rebuild_filter(self) -> None:
        """Rebuild the id filter from the rows in memory."""
        columns = [chunk.view("id_hash") for chunk in self.chunks.values()]
        hashes = self.survivors.rows_by_hash
        columns.append(np.fromiter(hashes, dtype=np.uint32, count=len(hashes)))
        self.ids.rebuild(columns, sum(map(len, columns)))

    def open(self, start: int, end: int, live: list[int]) -> None:
        """Load the rows of a checkpoint from the files."""
        self.start, self.end = start, end
        for base in live:
            chunk = Chunk(base, self.chunk_rows)
            chunk.load(self.files.rows(base, 0, min(end - base, self.chunk_rows)))
            self.chunks[base] = chunk
            self.lacks_rows = self.lacks_rows or 0 in chunk.size[chunk.skipped : chunk.count]
        self.survivors.load(self.files.read_survivors())
        self.rebuild_filter()

    def forget_files_below(self, log_offset: int, needed_from: int) -> None:
        """Forget files of decided rows whose messages are no longer in the log.

        No survivor below the row ``needed_from`` is needed.
        """
        pinned = min((needed_from - needed_from % self.chunk_rows, *self.chunks))
        self.files.remove_below(log_offset, pinned)
        if self.files.chunks:
            self.start = max(self.start, self.files.chunks[0].base)

    # Where rows are.

    def kept(self) -> Iterator[Half]:
        """Yield the rows of the map, except those of a chunk that is about to leave."""
        for row, half in self.survivors.rows.items():
            if self.place(row)[0] is None:
                yield half

    def kept_rows(self) -> KeptRows:
        """Return the columns of the rows that ``kept`` yields."""
        columns = self.survivors.columns
        if not self._leaving:
            return columns.all()
        rows = columns.all().half_offsets()
        is_in_chunk = np.zeros(len(rows), dtype=np.bool_)
        for base in self._leaving:
            here = np.flatnonzero((rows >= base) & (rows < base + self.chunk_rows))
            is_in_chunk[here] = self.chunks[base].view("size")[rows[here] - base] > 0
        return columns.without(is_in_chunk)

    def needed_blocks(self) -> Iterator[Chunk | KeptRows]:
        """Yield columns of all rows, each row once, except chunks in which nothing is needed."""
        yield self.kept_rows()
        yield from (chunk for chunk in self.chunks.values() if chunk.needed)

    def place(self, half_offset: int) -> tuple[Chunk | None, int]:
        """Return a row's chunk and its index there; None and 0 if it is not in a chunk."""
        chunk = self.chunks.get(half_offset - half_offset % self.chunk_rows)
        at = half_offset % self.chunk_rows
        if chunk is None or not chunk.skipped <= at < chunk.count or not chunk.size[at]:
            return None, 0
        return chunk, at

    def slices(self, first: int, count: int) -> Iterator[tuple[Chunk, int, int]]:
        """Yield where these rows are in chunks: chunk, start and end."""
        row = first
        while row < first + count:
            base = row - row % self.chunk_rows
            end = min(first + count, base + self.chunk_rows)
            chunk = self.chunks.get(base)
            if chunk is not None:
                at, stop = max(row - base, chunk.skipped), min(end - base, chunk.count)
                if at < stop:
                    yield chunk, at, stop
            row = end

    def by_chunk(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Group rows by their chunks in memory: each chunk's base, and its indices in ``rows``."""
        bases = rows - rows % self.chunk_rows
        found = []
        for base in np.unique(bases).tolist():
            chunk = self.chunks.get(base)
            if chunk is not None:
                start, end = base + chunk.skipped, base + chunk.count
                found.append((base, np.flatnonzero((rows >= start) & (rows < end))))
        return found

    def is_in_chunks(self, first: int, count: int) -> bool:
        """Whether all these rows are in chunks."""
        return sum(end - at for _, at, end in self.slices(first, count)) == count

    def _halves(self, first: int, count: int) -> Iterator[Half]:
        for row in range(first, first + count):
            half = self.get(row)
            assert half is not None, "a request's rows stay together"
            yield half
