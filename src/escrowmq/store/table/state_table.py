"""The state table: one fixed-size row per half message, by half offset.

It is a projection of the log. Memory is authoritative; only checkpoints write files, and only with
what the log has flushed. Recent rows, and old ones while many are undecided, live in chunks of
columns. A chunk with hardly any needed row left is dropped: its survivors go to a small map, and
decided rows are read from the file on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.store.table.chunk import Chunk
from escrowmq.store.table.row_queries import RowQueries
from escrowmq.store.table.state_files import StateSnapshot
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import STATES, State
from escrowmq.transaction.table import Half, NewRows, first_row

if TYPE_CHECKING:
    from escrowmq.transaction.core import Where
    from escrowmq.transaction.records import Carried, CarriedRow

DROP_SHARE = 64
"""A chunk is dropped when at most one row in this many is still needed."""


_DECIDED = (State.COMMITTED, State.ROLLED_BACK)


class StateTable(RowQueries):
    """Every row; the table that the broker gives to the core."""

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
        """Set the state of rows; before a final state, the caller adds the decision to ``ops``."""
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
        # Needed rows of a chunk that is about to leave memory are survivors, too.
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
        """Make a chunk's needed rows survivors; the chunk stays in memory until it is on disk."""
        chunk = self.chunks[base]
        # Due checks that were seen in the chunk must not count as new among the survivors.
        unseen_from_ms = min(self.survivors.check_from_ms, chunk.check_from_ms)
        for at in chunk.needed_below(NEVER).tolist():
            half = self.get(base + at)
            assert half is not None
            self.survivors.keep(half, chunk.id_hash[at])
        self.survivors.check_from_ms = unseen_from_ms

    def install(self, snapshot: StateSnapshot) -> None:
        """Drop from memory what need not stay there, now that files hold the snapshot."""
        # Survivors that were decided keep their own op offset.
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
