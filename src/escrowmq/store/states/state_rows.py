"""Rows for a state store, read from the state table by the column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.records import NEVER, PLAIN
from escrowmq.transaction.state_store import are_undecided, rows_of
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.store.store import Store
    from escrowmq.store.table.state_files import ChunkFile
    from escrowmq.transaction.records import NamedOrigin
    from escrowmq.transaction.table import Half

_IN_CHUNKS = ("log_offset", "stored_at_ms", "next_at_ms", "size", "origin", "state", "checks_sent")


def rows_at(store: Store, half_offsets: Rows) -> Rows:
    """Return one row for each of these half offsets, from memory.

    The size is 0 if it is not a half message, or if it was decided and has left memory.
    """
    table = store.table
    found = rows_of(len(half_offsets))
    found["half_offset"], found["op_offset"] = half_offsets, -1
    parts = np.zeros(len(found), dtype=np.uint16)
    for base, here in table.by_chunk(half_offsets):
        chunk, at = table.chunks[base], half_offsets[here] - base
        for name in _IN_CHUNKS:
            found[name][here] = chunk.view(name)[at]
        parts[here] = chunk.view("part")[at]
    for index in np.flatnonzero(found["size"] == 0).tolist():
        half = table.survivors.rows.get(int(half_offsets[index]))
        if half is not None:
            _set(found, parts, index, half)
    return _cleared(store, found, parts)


def rows_between(store: Store, first: int, end: int, *, with_files: bool = True) -> Rows:
    """Return the half messages of a range, with the frames that decided them.

    Files have decided rows that have left memory; reading them waits for the disk.
    """
    table = store.table
    end = max(min(end, table.end), first)
    found = rows_of(end - first)
    found["half_offset"], found["op_offset"] = np.arange(first, end), -1
    parts = np.zeros(len(found), dtype=np.uint16)
    for filed in table.files.chunks if with_files else ():
        at, stop = max(filed.base, first, table.start), min(filed.base + filed.count, end)
        if at < stop:
            here = slice(at - first, stop - first)
            rows = table.files.rows(filed.base, at - filed.base, stop - at)
            for name in (*_IN_CHUNKS, "op_offset"):
                found[name][here] = rows[name]
            parts[here] = rows["part"]
    for base, where in table.by_chunk(found["half_offset"]):
        chunk, at_rows = table.chunks[base], found["half_offset"][where] - base
        for name in _IN_CHUNKS:
            found[name][where] = chunk.view(name)[at_rows]
        parts[where] = chunk.view("part")[at_rows]
    for row in table.survivors.between(first, end):
        # Rows of a chunk that is about to leave are the same in both places.
        _set(found, parts, row - first, table.survivors.rows[row])
    found = _cleared(store, found, parts)
    found = found[found["size"] > 0]
    unfiled = np.flatnonzero(~are_undecided(found["state"]) & (found["op_offset"] < 0))
    for index in unfiled.tolist() if with_files else ():
        half = store.core.row(int(found["half_offset"][index]))
        found["op_offset"][index] = table.op_offset(half)
    return found


def with_filed(store: Store, rows: Rows, first: int, end: int) -> Rows:
    """Return the rows of a range that memory had, and those that are only in files.

    Any thread may call it: a row that has left memory is decided, and never changes again.
    """
    files, start = store.table.files, store.table.start
    while True:
        chunks = list(files.chunks)
        try:
            filed = [_filed(store, one, max(first, start), end) for one in chunks]
        except StoreCorrupt:
            if files.chunks == chunks:
                raise
            # A checkpoint has replaced a file meanwhile, or retention has deleted it.
            continue
        found = np.concatenate([rows_of(0), *filed])
        found = found[~np.isin(found["half_offset"], rows["half_offset"])]
        joined = np.concatenate([rows, found[~are_undecided(found["state"])]])
        return joined[np.argsort(joined["half_offset"])]


def origins_of(store: Store, rows: Rows) -> dict[int, NamedOrigin]:
    """Return the origins that these rows name, by number."""
    origins = store.core.names.origins
    return {number: origins[number] for number in np.unique(rows["origin"]).tolist()}


def _filed(store: Store, filed: ChunkFile, first: int, end: int) -> Rows:
    """Return the half messages of a range that one file has."""
    at, stop = max(filed.base, first), min(filed.base + filed.count, end)
    found = rows_of(max(stop - at, 0))
    if not len(found):
        return found
    rows = store.table.files.rows_in(filed, at - filed.base, stop - at)
    found["half_offset"] = np.arange(at, stop)
    for name in (*_IN_CHUNKS, "op_offset"):
        found[name] = rows[name]
    found["next_at_ms"] = NEVER
    halves: Rows = found[(found["size"] > 0) & (found["origin"] != PLAIN)]
    return halves


def _set(found: Rows, parts: Rows, index: int, half: Half) -> None:
    for name in (*_IN_CHUNKS, "op_offset"):
        found[name][index] = getattr(half, name)
    parts[index] = half.part


def _cleared(store: Store, found: Rows, parts: Rows) -> Rows:
    """Empty the rows of ordinary messages, and complete the others."""
    found["size"][found["origin"] == PLAIN] = 0
    is_open = are_undecided(found["state"])
    # A committed message that waits for its time is due too, but not for a check.
    found["next_at_ms"][~is_open] = NEVER
    found["op_offset"][is_open] = -1
    found["is_head"] = parts >= FIRST
    later = store.core.heads
    if len(later) > len(found):
        heads = np.flatnonzero(found["is_head"])
        numbers = found["half_offset"][heads].tolist()
        found["is_head"][heads] = [number not in later for number in numbers]
    elif later:
        numbers = np.fromiter(later, dtype=np.int64, count=len(later))
        found["is_head"] &= ~np.isin(found["half_offset"], numbers)
    return found
