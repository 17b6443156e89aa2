"""What retention carries at a time: few enough rows and bytes that nobody notices.

A request is carried whole, or in parts if it is large: the last rows first, because as long as the
first row is where it was, the request counts as not carried.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.needed import NEEDED_ROW
from escrowmq.transaction.commands import Carry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.store.rows import Rows

SLICE_BYTES_MAX = 1024 * 1024
SLICE_WEIGHT_MAX = 1_024
REQUEST_WEIGHT = 31
"""A request weighs so much, and 1 for each of its rows: about what they cost."""

PART_ROWS_MAX = 256
ROW_BYTES = 256
"""What a carried row adds to the log and to the indexes, beside its message's bytes."""

LONG_AGO_MS = 1
"""When a request was carried of which other parts are carried already: nobody knows when."""


class Slice(msgspec.Struct):
    """Commands that are given to the writer together."""

    commands: list[Carry]
    weight: int
    #: What they write, about.
    bytes: int


def in_order(found: Sequence[Rows]) -> Rows:
    """All of these needed rows, by their numbers."""
    rows: Rows = np.concatenate([np.zeros(0, dtype=NEEDED_ROW), *found])
    return rows[np.argsort(rows["row"], kind="stable")]


def bytes_of(needed: Rows) -> int:
    """What carrying them writes, about."""
    return int(needed["size"].sum()) + ROW_BYTES * len(needed)


def slices(needed: Rows, at_ms: int) -> Iterator[Slice]:
    """Commands that carry all of these rows, of which there is one; it is not later than this."""
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
    """Each with its rows and bytes."""
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
    """Each two neighbors, as numbers of Python, without a list of all of them."""
    for at in range(0, len(borders) - 1, SLICE_WEIGHT_MAX):
        yield from pairwise(borders[at : at + SLICE_WEIGHT_MAX + 1].tolist())


def _parts(rows: Rows, since_ms: int) -> Iterator[tuple[Carry, int, int]]:
    """The parts of one request, the last one first."""
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
