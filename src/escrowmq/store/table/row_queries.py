"""The queries of the state table that look at rows. None changes anything."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np

from escrowmq.store.disk.rows import STATE_ROW, Rows
from escrowmq.store.table.row_places import RowPlaces
from escrowmq.store.table.undecided import held_in
from escrowmq.transaction.table import FIRST, HALF_COLUMNS, Half, HalfColumns, HeldRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from escrowmq.model.message import SentMessage
    from escrowmq.store.disk.disk import Disk


class LogReaders(msgspec.Struct, frozen=True):
    """Functions that read the log for what rows do not hold: ids, messages, deciders."""

    #: Transaction id and number of a request, by its first row.
    identity: Callable[[Half], tuple[str, int]]
    #: Whether a stored half holds this message.
    holds: Callable[[Half, SentMessage], bool]
    #: By a frame's log offset: who made the decision that it holds, and when.
    decision: Callable[[int], tuple[str, int]]


class RowQueries(RowPlaces):
    """Queries by row, by transaction id and by log offset, and counts."""

    def __init__(self, disk: Disk, chunk_rows: int, reading: LogReaders) -> None:
        super().__init__(disk, chunk_rows)
        self._reading = reading

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
        """Whether the row may belong to this transaction, judging by the id's hash.

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
        """Return the transaction id and number of a request, as they were prepared."""
        return self._reading.identity(half)

    def decided_by(self, half: Half) -> tuple[str, int]:
        """Return who decided the half message, and when."""
        return self._reading.decision(self.op_offset(half))

    def op_offset(self, half: Half) -> int:
        """Return the log offset of the frame that decided it; -1 if none is known."""
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
        """Return up to ``limit`` due rows: undecided ones to check, committed ones to show."""
        rows = [half.half_offset for half in self.kept() if half.next_at_ms <= now_ms]
        for chunk in self.chunks.values():
            if len(rows) >= limit:
                break
            rows.extend(chunk.due(now_ms, limit - len(rows)))
        return rows[:limit]

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
        # Needed rows of a chunk that is about to leave memory are counted as survivors.
        staying = (chunk for base, chunk in self.chunks.items() if base not in self._leaving)
        return self.survivors.needed_bytes + sum(
            chunk.needed_bytes() for chunk in staying if chunk.needed
        )
