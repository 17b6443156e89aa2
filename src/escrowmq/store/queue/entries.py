"""Consume queue entries made from rows of the state table."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from escrowmq.store.disk.rows import STATE_ROW
from escrowmq.store.queue.consume_queue import EntryColumns, QueueEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.store.disk.rows import Rows
    from escrowmq.store.table.state_table import StateTable


def entry_of(table: StateTable, row: int, visible_at_ms: int) -> QueueEntry:
    """Return the entry for this row."""
    chunk, at = table.place(row)
    if chunk is None:
        half = table.get(row)
        if half is None:
            # Its message was deleted, and the queue starts after it.
            return QueueEntry(0, visible_at_ms, 0, 0, 0)
        return QueueEntry(half.location, visible_at_ms, half.size, half.tags, half.crc)
    return QueueEntry(
        chunk.location(at), visible_at_ms, chunk.size[at], chunk.tags[at], chunk.crc[at]
    )


def columns_of(
    table: StateTable, first: int, count: int, visible_at_ms: int
) -> Iterator[tuple[EntryColumns, array[int]]]:
    """Yield entries for these rows, and their queues, chunk by chunk."""
    if not table.lacks_rows and table.is_in_chunks(first, count):
        for chunk, at, end in table.slices(first, count):
            yield chunk.columns(at, end, visible_at_ms), chunk.queue[at:end]
        return
    entries = [entry_of(table, row, visible_at_ms) for row in range(first, first + count)]
    halves = [table.get(row) for row in range(first, first + count)]
    yield (
        EntryColumns(
            log_offsets=array("q", [entry.log_offset for entry in entries]),
            sizes=array("I", [entry.size for entry in entries]),
            tags=array("i", [entry.tags for entry in entries]),
            crcs=array("I", [entry.crc for entry in entries]),
            visible_at_ms=array("q", (visible_at_ms,)) * count,
        ),
        array("I", [half.queue if half else 0 for half in halves]),
    )


def columns_of_each(
    table: StateTable, rows: Rows, visible_at_ms: int, *, gone_at: int | None = None
) -> tuple[EntryColumns, array[int]]:
    """Return entries for these rows, in their order, and their queues.

    A row that is gone gets an empty entry that points to ``gone_at``, so that retention deletes
    the entry with that part of the log.
    """
    held = gather(table, rows, gone_at=gone_at)
    return (
        EntryColumns(
            log_offsets=array("q", held["log_offset"].tobytes()),
            sizes=array("I", held["size"].tobytes()),
            tags=array("i", held["tags"].tobytes()),
            crcs=array("I", held["crc"].tobytes()),
            visible_at_ms=array("q", (visible_at_ms,)) * len(rows),
        ),
        array("I", held["queue"].tobytes()),
    )


def gather(table: StateTable, rows: Rows, *, gone_at: int | None = None) -> dict[str, Rows]:
    """Return the columns of these rows that consume queue entries need, in their order."""
    columns = {
        name: np.zeros(len(rows), dtype=STATE_ROW[name])
        for name in ("log_offset", "size", "tags", "crc", "queue")
    }
    for base, here in table.by_chunk(rows):
        chunk = table.chunks[base]
        at = rows[here] - base
        for name, column in columns.items():
            column[here] = (chunk.locations() if name == "log_offset" else chunk.view(name))[at]
    for index in np.flatnonzero(columns["size"] == 0).tolist():
        half = table.get(int(rows[index]))
        if half is None:
            assert gone_at is not None, "no row is missing"
            columns["log_offset"][index] = gone_at
            continue
        values = (half.location, half.size, half.tags, half.crc, half.queue)
        for column, value in zip(columns.values(), values, strict=True):
            column[index] = value
    return columns
