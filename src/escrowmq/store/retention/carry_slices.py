"""Slices of the rows that retention carries forward, small enough not to delay clients.

A request is carried whole, or in parts if it is large. The last rows go first, because the request
counts as not carried as long as its first row is at the old place.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.retention.needed import NEEDED_ROW
from escrowmq.transaction.commands import Carry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.store.disk.rows import Rows

SLICE_BYTES_MAX = 1024 * 1024
SLICE_WEIGHT_MAX = 1_024
REQUEST_WEIGHT = 31
"""Weight of a request, plus 1 for each of its rows: roughly their relative cost."""

PART_ROWS_MAX = 256
ROW_BYTES = 256
"""Bytes that a carried row adds to the log and the indexes, besides its message."""

LONG_AGO_MS = 1
"""Stand-in for the unknown time when earlier parts of a request were carried."""


class Slice(msgspec.Struct):
    """Commands that the writer receives together."""

    commands: list[Carry]
    weight: int
    #: Approximate bytes that they write.
    bytes: int


def in_order(found: Sequence[Rows]) -> Rows:
    """Return all of these needed rows, sorted by row number."""
    rows: Rows = np.concatenate([np.zeros(0, dtype=NEEDED_ROW), *found])
    return rows[np.argsort(rows["row"], kind="stable")]


def bytes_of(needed: Rows) -> int:
    """Estimate the bytes that carrying these rows writes."""
    return int(needed["size"].sum()) + ROW_BYTES * len(needed)


def slices(needed: Rows, at_ms: int) -> Iterator[Slice]:
    """Yield commands that carry all of these rows; there must be at least one row.

    ``at_ms`` is the store time before the first command. Requests carried in parts record it.
    """
    gathered = Slice([], 0, 0)
    for command, rows, size in _commands(needed, at_ms):
        weight = REQUEST_WEIGHT + rows
        is_full = (
            gathered.weight + weight > SLICE_WEIGHT_MAX or gathered.bytes + size > SLICE_BYTES_MAX
        )
        if is_full and gathered.commands:
            yield gathered
            gathered = Slice([], 0, 0)
        gathered.commands.append(command)
        gathered.weight += weight
        gathered.bytes += size
    yield gathered


def _commands(needed: Rows, at_ms: int) -> Iterator[tuple[Carry, int, int]]:
    """Yield each command with its number of rows and bytes."""
    firsts = needed["first"]
    borders = np.flatnonzero(firsts[1:] != firsts[:-1]) + 1
    ends = np.cumsum(needed["size"] + ROW_BYTES)
    for start, end in _pairs(np.concatenate([[0], borders, [len(needed)]])):
        size = int(ends[end - 1] - (ends[start - 1] if start else 0))
        first, rows = int(firsts[start]), end - start
        is_whole = int(needed["count"][start]) == rows
        if is_whole and rows <= PART_ROWS_MAX and (size <= SLICE_BYTES_MAX or rows == 1):
            yield Carry(first=first), rows, size
        else:
            since_ms = at_ms if is_whole else LONG_AGO_MS
            yield from _parts(needed[start:end], since_ms)


def _pairs(borders: Rows) -> Iterator[tuple[int, int]]:
    """Yield pairs of neighbors as Python integers, without building a list of all of them."""
    for at in range(0, len(borders) - 1, SLICE_WEIGHT_MAX):
        yield from pairwise(borders[at : at + SLICE_WEIGHT_MAX + 1].tolist())


def _parts(rows: Rows, since_ms: int) -> Iterator[tuple[Carry, int, int]]:
    """Yield the parts of one request, the last one first."""
    end = len(rows)
    while end:
        start, size = end - 1, int(rows["size"][end - 1]) + ROW_BYTES
        while start and end - start < PART_ROWS_MAX:
            more = int(rows["size"][start - 1]) + ROW_BYTES
            if size + more > SLICE_BYTES_MAX:
                break
            start, size = start - 1, size + more
        part = int(rows["row"][start]), int(rows["row"][end - 1]) + 1
        yield Carry(first=int(rows["first"][0]), part=part, since_ms=since_ms), end - start, size
        end = start
