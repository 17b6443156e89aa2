"""Where the rows of the state table are: in chunks, in the map of survivors, or in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.store.table.chunk import Chunk
from escrowmq.store.table.id_filter import IdFilter
from escrowmq.store.table.releases import Releases
from escrowmq.store.table.state_files import StateFiles
from escrowmq.store.table.survivors import Survivors
from escrowmq.store.table.unfiled_ops import UnfiledOps
from escrowmq.transaction.states import STATES
from escrowmq.transaction.table import FIRST, Half

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.disk.disk import Disk
    from escrowmq.store.table.survivor_columns import KeptRows


class RowPlaces:
    """All rows, and the place of each. Its methods change nothing."""

    def __init__(self, disk: Disk, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self.files = StateFiles(disk, chunk_rows)
        #: The lowest row in chunks and files; there may be older survivors.
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
        #: Whether rows between others may be lost or deleted: then code takes them one by one.
        self.lacks_rows = False

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

    def kept(self) -> Iterator[Half]:
        """Yield the survivors, except those that are still in a chunk, which is about to leave."""
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
