"""The state table's files: one per chunk, and one for rows that outlived their chunk.

A file never changes. A checkpoint writes each changed chunk to a file of the next generation, and
then names the generations that are valid. So a checkpoint that a crash interrupts leaves only files
that no checkpoint names.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from contextlib import closing
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.rows import STATE_ROW, SURVIVOR_ROW, Rows, read_rows, rows_damaged, sealed
from escrowmq.store.table.frozen_chunk import FrozenChunk
from escrowmq.store.table.unfiled_ops import OpColumns
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from escrowmq.store.disk.disk import Disk

DIRECTORY = "statetable"
PIECE_BYTES = 256 * 1024
"""Bytes that are flushed at a time; a flush of the log may wait for all unflushed bytes."""
_NAME = re.compile(r"(\d{20}|survivors)\.\d+")
_FIELDS = tuple(name for name in STATE_ROW.names or () if name not in ("check", "id_hash"))


class ChunkFile(msgspec.Struct, frozen=True, array_like=True):
    """The file that holds a chunk's rows ``[base, base + count)``."""

    base: int
    generation: int
    count: int
    #: The log offset at which its first row was stored, to find rows by log offset.
    log_offset: int
    #: The highest log offset at which the log has the bytes of a row of this file, including
    #: bytes that retention carried forward.
    location_max: int = 0

    @property
    def name(self) -> str:
        """File name in the directory."""
        return f"{self.base:020d}.{self.generation}"


def survivors_name(generation: int) -> str:
    """Return the name of the file with survivors."""
    return f"survivors.{generation}"


class Survivor(msgspec.Struct, frozen=True):
    """A row that is still needed after its chunk left memory, and its transaction id's hash."""

    half: Half
    id_hash: int


class SavedSurvivors:
    """Snapshot of all survivors, as of the moment when it was made.

    Copying them at that moment would hold up the event loop. So they are copied when they are
    written, maybe in another thread, and changes since then are undone in the copy.
    """

    def __init__(self, live: Mapping[int, Half], id_hashes: Mapping[int, int]) -> None:
        self._live = live
        self._id_hashes = id_hashes
        #: Old values of rows that have changed since; None if they did not exist.
        self.before: dict[int, Half | None] = {}

    def note(self, row: int, half: Half | None) -> None:
        """Record the value of a row that is about to change."""
        self.before.setdefault(row, half)

    def survivors(self) -> list[Survivor]:
        """Return every row of the snapshot."""
        # Each copy is atomic, and the order matters: a change between the two is in the second one.
        rows, before = dict(self._live), dict(self.before)
        rows.update((row, half) for row, half in before.items() if half is not None)
        later = {row for row, half in before.items() if half is None}
        return [
            Survivor(half, self._id_hashes[row]) for row, half in rows.items() if row not in later
        ]


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint writes, and what memory may drop afterwards."""

    #: By base.
    chunks: dict[int, FrozenChunk]
    survivors: SavedSurvivors | None
    dropped: list[int]
    #: Decisions since the last snapshot.
    ops: OpColumns


def to_half(row: int, rows: Rows) -> Half:
    """Return the first of these rows as the core sees it."""
    fields = {name: rows[name][0].item() for name in _FIELDS}
    fields["state"] = State(fields["state"])
    return Half(half_offset=row, **fields)


class StateFiles:
    """Rows on disk, as of the last checkpoint."""

    def __init__(self, disk: Disk, chunk_rows: int) -> None:
        self._disk = disk
        self._chunk_rows = chunk_rows
        #: Sorted by base.
        self.chunks: list[ChunkFile] = []
        self.survivors_generation = 0
        self.survivors_count = 0
        self._first_generation = 0

    def skip_generations(self) -> None:
        """Begin without files, and never write to an existing one: a checkpoint may name it."""
        generations = [int(name.partition(".")[2]) for name in self._disk.list(DIRECTORY)]
        self._first_generation = self.survivors_generation = max(generations, default=-1) + 1

    def refuse_foreign(self) -> None:
        """Raise if there is a file that is not the store's, before anything is deleted."""
        for name in self._disk.list(DIRECTORY):
            if not _NAME.fullmatch(name):
                path = f"{DIRECTORY}/{name}"
                raise StoreUnusable("store_foreign", "move this file away", path=path)

    def rows(self, base: int, at: int, count: int) -> Rows:
        """Return rows of a chunk, checked."""
        return self.rows_in(self._of(base), at, count)

    def rows_in(self, chunk: ChunkFile, at: int, count: int) -> Rows:
        """Return rows of a file, checked. Any thread may call it."""
        return self._read(chunk.name, STATE_ROW, at, count)

    def half(self, half_offset: int) -> Half:
        """Return one row that a checkpoint has written."""
        at = half_offset % self._chunk_rows
        return to_half(half_offset, self.rows(half_offset - at, at, 1))

    def op_offset(self, half_offset: int) -> int:
        """Return the frame that decided a row, as of the last checkpoint; -1 if no file has it."""
        base = half_offset - half_offset % self._chunk_rows
        index = bisect_left(self.chunks, base, key=lambda chunk: chunk.base)
        if index == len(self.chunks) or self.chunks[index].base != base:
            return -1
        return self.half(half_offset).op_offset

    def read_survivors(self) -> list[Survivor]:
        """Return all survivors."""
        if not self.survivors_count:
            return []
        rows = self._read(
            survivors_name(self.survivors_generation), SURVIVOR_ROW, 0, self.survivors_count
        )
        return [
            Survivor(to_half(int(one["half_offset"][0]), one), int(one["id_hash"][0]))
            for one in np.split(rows, len(rows))
        ]

    def row_at(self, log_offset: int) -> int | None:
        """Return the row on disk that was first stored at exactly this log offset."""
        index = bisect_right(self.chunks, log_offset, key=lambda chunk: chunk.log_offset) - 1
        if index < 0:
            return None
        chunk = self.chunks[index]
        offsets = self.rows(chunk.base, 0, chunk.count)["log_offset"]
        at = int(np.searchsorted(offsets, log_offset))
        return chunk.base + at if at < len(offsets) and offsets[at] == log_offset else None

    def _of(self, base: int) -> ChunkFile:
        index = bisect_right(self.chunks, base, key=lambda chunk: chunk.base) - 1
        assert index >= 0
        return self.chunks[index]

    def _read(self, name: str, kind: np.dtype[np.void], at: int, count: int) -> Rows:
        path = f"{DIRECTORY}/{name}"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            raise rows_damaged("state_table_damaged", path, 0, "the file is missing") from None
        with closing(file):
            return read_rows("state_table_damaged", file, path, kind, range(at, at + count))

    # Writing.

    def write(self, snapshot: StateSnapshot) -> None:
        """Write a checkpoint's rows to new files and flush them."""
        by_base = {file.base: file for file in self.chunks}
        for base, chunk in snapshot.chunks.items():
            rows = chunk.to_rows(snapshot.ops)
            old = by_base.get(base)
            if old is not None:
                self._keep_ops(rows, old)
            new = ChunkFile(
                base,
                old.generation + 1 if old else self._first_generation,
                len(rows),
                int(rows["log_offset"][np.argmax(rows["size"] > 0)]),
                int(rows["location"].max()),
            )
            self._write(new.name, sealed(rows))
            by_base[base] = new
        if snapshot.survivors is not None:
            self.survivors_generation += 1
            survivors = snapshot.survivors.survivors()
            self.survivors_count = len(survivors)
            if survivors:
                self._write(
                    survivors_name(self.survivors_generation), sealed(_survivor_rows(survivors))
                )
        self._disk.flush_directory(DIRECTORY)
        self.chunks = [by_base[base] for base in sorted(by_base)]

    def _keep_ops(self, rows: Rows, old: ChunkFile) -> None:
        """Keep op offsets of rows decided before the last checkpoint; only the file has them."""
        unknown = rows["op_offset"][: old.count] < 0
        if unknown.any():
            known = self._read(old.name, STATE_ROW, 0, old.count)
            rows["op_offset"][: old.count][unknown] = known["op_offset"][unknown]

    def _write(self, name: str, data: bytes) -> None:
        with closing(self._disk.open(f"{DIRECTORY}/{name}", create=True)) as file:
            # A crash may have left an unnamed file here, longer than this one.
            file.truncate(0)
            view = memoryview(data)
            for at in range(0, len(view), PIECE_BYTES):
                file.write_at(at, view[at : at + PIECE_BYTES])
                file.flush()

    def remove_below(self, log_offset: int, pinned_base: int) -> None:
        """Forget chunks, oldest first, whose messages all lie below this log offset.

        Chunks from ``pinned_base`` on stay.
        """
        while len(self.chunks) > 1 and self.chunks[1].log_offset <= log_offset:
            if self.chunks[0].base >= pinned_base or self.chunks[0].location_max >= log_offset:
                break
            self.chunks.pop(0)

    def collect(self, keep: Iterable[str]) -> None:
        """Delete every file except these, which a checkpoint names."""
        kept = set(keep)
        for name in self._disk.list(DIRECTORY):
            if name not in kept:
                self._disk.remove(f"{DIRECTORY}/{name}")


def _survivor_rows(survivors: list[Survivor]) -> Rows:
    rows = np.zeros(len(survivors), dtype=SURVIVOR_ROW)
    for name in _FIELDS:
        rows[name] = [getattr(survivor.half, name) for survivor in survivors]
    rows["half_offset"] = [survivor.half.half_offset for survivor in survivors]
    rows["id_hash"] = [survivor.id_hash for survivor in survivors]
    return rows
