"""The state table's files: one per chunk, named by its first row."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.rows import STATE_ROW, Rows, first_bad, sealed
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from escrowmq.store.disk import Disk

DIRECTORY = "statetable"
ROW_BYTES = STATE_ROW.itemsize


def chunk_path(base: int) -> str:
    """Where the rows are that start at ``base``."""
    return f"{DIRECTORY}/{base:020d}"


class Piece(msgspec.Struct, frozen=True):
    """Rows to write: those of chunk ``base`` from its ``at``-th on."""

    base: int
    at: int
    rows: Rows


class StateSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint writes to the files, and what memory may forget afterwards."""

    pieces: list[Piece]
    survivors: list[Half]
    dropped: list[int]
    gone: list[int]
    ops: list[int]


def to_half(row: int, rows: Rows) -> Half:
    """The first of these rows, as the core sees it."""
    fields = {
        name: rows[name][0].item()
        for name in STATE_ROW.names or ()
        if name not in ("check", "id_hash", "state")
    }
    return Half(half_offset=row, state=State(rows["state"][0]), **fields)


class StateFiles:
    """Rows on disk."""

    def __init__(self, disk: Disk, chunk_rows: int) -> None:
        self._disk = disk
        self._chunk_rows = chunk_rows
        #: Bases that have a file, ascending, with the log offset of their first row in there.
        self._bases: list[int] = []
        self._offsets: list[int] = []

    def scan(self, start: int, end: int) -> None:
        """Note the files that hold rows of [start, end), and delete the others."""
        self._bases, self._offsets = [], []
        for name in self._disk.list(DIRECTORY):
            base = int(name)
            if base >= end or base + self._chunk_rows <= start:
                self._disk.remove(chunk_path(base))
                continue
            at = max(start - base, 0)
            self._bases.append(base)
            self._offsets.append(int(self.rows(base, at, 1)["log_offset"][0]))

    def rows(self, base: int, at: int, count: int) -> Rows:
        """Rows of a file, checked."""
        path = chunk_path(base)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            raise _damaged(path, 0, "the file is missing") from None
        try:
            data = file.read_at(at * ROW_BYTES, count * ROW_BYTES)
        finally:
            file.close()
        if len(data) < count * ROW_BYTES:
            raise _damaged(path, at * ROW_BYTES, "the file is too short")
        rows = np.frombuffer(data, dtype=STATE_ROW)
        bad = first_bad(rows)
        if bad is not None:
            raise _damaged(path, (at + bad) * ROW_BYTES, "a check word is wrong")
        return rows

    def half(self, half_offset: int) -> Half:
        """One row that a checkpoint has written."""
        at = half_offset % self._chunk_rows
        return to_half(half_offset, self.rows(half_offset - at, at, 1))

    def row_at(self, log_offset: int) -> int | None:
        """The row with exactly this identity, among those on disk."""
        index = bisect_right(self._offsets, log_offset) - 1
        if index < 0:
            return None
        base = self._bases[index]
        low, high = 0, self._row_count(base)
        while low < high:
            middle = (low + high) // 2
            found = self.rows(base, middle, 1)["log_offset"][0]
            if found == log_offset:
                return base + middle
            if found < log_offset:
                low = middle + 1
            else:
                high = middle
        return None

    def _row_count(self, base: int) -> int:
        file = self._disk.open(chunk_path(base))
        try:
            return file.size() // ROW_BYTES
        finally:
            file.close()

    def write(self, snapshot: StateSnapshot) -> None:
        """Write a checkpoint's rows and flush them."""
        names_before = len(self._bases)
        for piece in snapshot.pieces:
            self._write_piece(piece)
        for half in snapshot.survivors:
            self._write_survivor(half)
        if len(self._bases) > names_before:
            self._disk.flush_directory(DIRECTORY)

    def _write_piece(self, piece: Piece) -> None:
        path = chunk_path(piece.base)
        file = self._disk.open(path, create=True)
        try:
            if piece.base not in self._bases:
                self._bases.append(piece.base)
                self._offsets.append(int(piece.rows["log_offset"][0]))
            else:
                self._keep_ops(piece, file.size() // ROW_BYTES)
            file.write_at(piece.at * ROW_BYTES, sealed(piece.rows))
            file.flush()
        finally:
            file.close()

    def _keep_ops(self, piece: Piece, known: int) -> None:
        """Rows decided before the last checkpoint: only the file knows by which frame."""
        unknown = (piece.rows["op_offset"] < 0) & (piece.rows["state"] != State.PREPARED)
        unknown[max(known - piece.at, 0) :] = False
        if unknown.any():
            count = int(np.flatnonzero(unknown)[-1]) + 1
            file = self._disk.open(chunk_path(piece.base))
            data = file.read_at(piece.at * ROW_BYTES, count * ROW_BYTES)
            file.close()
            old = np.frombuffer(data, dtype=STATE_ROW)
            piece.rows["op_offset"][:count][unknown[:count]] = old["op_offset"][unknown[:count]]

    def _write_survivor(self, half: Half) -> None:
        at = half.half_offset % self._chunk_rows
        base = half.half_offset - at
        rows = np.zeros(1, dtype=STATE_ROW)
        for name in STATE_ROW.names or ():
            if name not in ("check", "id_hash"):
                rows[name] = getattr(half, name)
        if base in self._bases:
            rows["id_hash"] = self.rows(base, at, 1)["id_hash"]
        file = self._disk.open(chunk_path(base), create=True)
        try:
            file.write_at(at * ROW_BYTES, sealed(rows))
            file.flush()
        finally:
            file.close()

    def remove_below(self, log_offset: int, pinned: AbstractSet[int]) -> int:
        """Delete files, oldest first, all of whose messages lie below; returns the new first row.

        The next file's first message tells where a file's last one is.
        """
        while len(self._bases) > 1 and self._offsets[1] <= log_offset:
            if self._bases[0] in pinned:
                break
            self._disk.remove(chunk_path(self._bases.pop(0)))
            self._offsets.pop(0)
        return self._bases[0] if self._bases else 0


def _damaged(path: str, at: int, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        "state_table_damaged",
        f"{what}; `escrowmq store repair` rebuilds it from the log",
        path=path,
        at=at,
    )
