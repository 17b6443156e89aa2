"""Finds the half messages that retention must carry forward, a slice at a time.

A scan of every undecided row takes long when there are hundreds of thousands. Each slice examines
some chunks, or about two thousand survivors, and other work runs in between. A row that is no
longer needed never becomes needed again, and rows move only from chunks to the survivors. So a walk
over the chunks first and the survivors second misses none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.table.chunk import Chunk
    from escrowmq.store.table.state_table import StateTable

CHUNKS_SLICE = 32_768
"""Rows of chunks that one slice examines, by column; it examines whole chunks."""

SURVIVORS_SLICE = 2_048
"""Survivors that one slice examines, one by one."""

#: A needed row: its number, the first row of its request and, in that row only, the number of rows
#: in the request; the location and number of its bytes, and whether they were carried forward.
NEEDED_ROW = np.dtype(
    [
        ("row", "<i8"),
        ("first", "<i8"),
        ("count", "<i8"),
        ("location", "<i8"),
        ("size", "<i8"),
        ("was_carried", "?"),
    ]
)


class Needed(msgspec.Struct, frozen=True):
    """Rows that retention must carry forward, as one slice of its scan found them."""

    rows: Rows
    #: No survivor that the slice examined is needed if it is below this row.
    lowest: int


def needed_below(table: StateTable, log_offset: int) -> Iterator[Needed]:
    """Yield the needed rows whose bytes lie below this log offset, slice by slice."""
    found: list[Rows] = []
    looked = 0
    for base in list(table.chunks):
        chunk = table.chunks.get(base)
        if chunk is not None and chunk.needed:
            found.append(_in_chunk(chunk, log_offset))
            looked += chunk.count
        if looked >= CHUNKS_SLICE:
            yield Needed(np.concatenate(found), table.end)
            found, looked = [], 0
    if found:
        yield Needed(np.concatenate(found), table.end)
    numbers = list(table.survivors.rows)
    for at in range(0, len(numbers), SURVIVORS_SLICE):
        yield _in_map(table, numbers[at : at + SURVIVORS_SLICE], log_offset)


def needed_rows(table: StateTable) -> list[int]:
    """Return all needed rows at once, sorted."""
    found = [one.rows["row"] for one in needed_below(table, NEVER)]
    return sorted(row for rows in found for row in rows.tolist())


def _in_chunk(chunk: Chunk, log_offset: int) -> Rows:
    hits = chunk.needed_below(log_offset)
    found = np.zeros(len(hits), dtype=NEEDED_ROW)
    found["row"] = hits + chunk.base
    part = chunk.view("part")[hits].astype(np.int64)
    is_first = part >= FIRST
    found["first"] = found["row"] - np.where(is_first, 0, part)
    found["count"] = np.where(is_first, part & ~FIRST, 0)
    found["location"] = chunk.locations()[hits]
    found["size"] = chunk.view("size")[hits]
    found["was_carried"] = found["location"] != chunk.view("log_offset")[hits]
    return found


def _in_map(table: StateTable, numbers: list[int], log_offset: int) -> Needed:
    known = table.survivors.rows
    needed = [half for row in numbers if (half := known.get(row)) is not None and half.is_needed]
    found = [
        (
            half.half_offset,
            half.first,
            half.part & ~FIRST if half.part & FIRST else 0,
            half.location,
            half.size,
            half.location != half.log_offset,
        )
        for half in needed
        if half.location < log_offset
    ]
    lowest = min((half.half_offset for half in needed), default=table.end)
    return Needed(np.array(found, dtype=NEEDED_ROW), lowest)
