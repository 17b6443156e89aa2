"""Lists transactions by half offset, page by page, as columns of the state table.

One row of the table stands for each transaction: its head, the first half message of its first
request. numpy picks rows from chunks and files, and no Python object is built per row. A page ends
at its limit of rows, or after examining enough rows, so that it never holds the event loop long.

For a decided transaction, the table no longer knows which requests belonged together, so each
request is listed.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from escrowmq.store.disk.rows import Rows
from escrowmq.transaction.records import PLAIN
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from escrowmq.store.store import Store
    from escrowmq.store.table.chunk import Chunk
    from escrowmq.store.table.state_table import StateTable

LOOKED_AT_MAX = 2_000_000
"""A page ends after examining this many rows."""

BLOCK_ROWS = 16_384
"""Rows examined at a time: hardly more than fit on a page."""

_DECIDED = frozenset((State.COMMITTED, State.ROLLED_BACK))
_NAMES = (
    "half_offset",
    "location",
    "stored_at_ms",
    "next_at_ms",
    "size",
    "origin",
    "part",
    "state",
    "checks_sent",
)
_HEAD = np.dtype([(name, "<i8") for name in _NAMES])


class TransactionPage(msgspec.Struct, frozen=True):
    """Heads sorted by half offset, and where the next page starts."""

    #: One record per head, its fields as 64-bit numbers.
    heads: Rows
    #: The next half offset to ask for; None if the range is done.
    next_start: int | None


class DueBy(NamedTuple):
    """Limits a list to heads for which the time rules may demand an action."""

    #: Heads whose next check is due by ``check_at_ms``, or that were stored by ``stored_at_ms``.
    check_at_ms: int
    stored_at_ms: int


def list_heads(
    store: Store,
    start: int,
    end: int,
    states: Collection[State],
    *,
    limit: int,
    looked_at_max: int = LOOKED_AT_MAX,
    due_by: DueBy | None = None,
) -> TransactionPage:
    """Return a page of heads in ``[start, end)`` in one of ``states``, which must not be empty."""
    wanted = WantedHeads(states, due_by)
    table = store.table
    end = min(end, table.end)
    found: list[Rows] = []
    count = looked_at = 0
    for block in _blocks(table, start, end, states):
        if looked_at >= looked_at_max:
            return _page(found, block[0])
        heads, next_start = _heads_in(store, block, wanted, limit - count)
        looked_at += block[1] - block[0]
        count += len(heads)
        found.append(heads)
        if next_start is not None:
            return _page(found, next_start)
    return _page(found, None)


def heads_at(store: Store, half_offsets: Rows, wanted: WantedHeads) -> Rows:
    """Return those of these rows that are wanted heads, sorted by half offset.

    A state store found them; the table says what they are now.
    """
    table = store.table
    found: list[Rows] = [np.empty(0, dtype=_HEAD)]
    is_elsewhere = np.ones(len(half_offsets), dtype=np.bool_)
    for base, here in table.by_chunk(half_offsets):
        chunk, at = table.chunks[base], half_offsets[here] - base
        heads = _picked(partial(_column, chunk, at), 0, wanted, len(at))
        heads["half_offset"] = half_offsets[here][heads["half_offset"]]
        found.append(heads)
        is_elsewhere[here] = chunk.view("size")[at] == 0
    halves = map(table.get, half_offsets[is_elsewhere].tolist())
    found.append(_from_halves([half for half in halves if half is not None], wanted))
    heads = np.concatenate(found)
    return _without_later(store, heads[np.argsort(heads["half_offset"])])


def plan(store: Store, weight: int) -> list[tuple[int, int, int]]:
    """Split all half offsets into ranges that can be listed separately.

    Returns (start, end, needed rows) of each. A range has about ``weight`` needed rows, or is as
    small as a range can be.
    """
    table = store.table
    weights: Counter[int] = Counter()
    kept = table.kept_rows()
    rows_kept = kept.half_offsets()[kept.is_needed]
    bases, counts = np.unique(rows_kept - rows_kept % table.chunk_rows, return_counts=True)
    weights.update(dict(zip(bases.tolist(), counts.tolist(), strict=True)))
    for base, chunk in table.chunks.items():
        weights[base] += chunk.needed
    ranges: list[tuple[int, int, int]] = []
    start = held = 0
    for base in sorted(weights):
        if held and held + weights[base] > weight:
            ranges.append((start, base, held))
            start, held = base, 0
        rows = min(table.end - base, table.chunk_rows)
        parts = min(-(-weights[base] // weight), rows)
        for part in range(1, parts):
            # The positions of the needed rows are unknown, so all parts get equally many rows.
            end = base + rows * part // parts
            ranges.append((start, end, weights[base] // parts))
            start = end
        held += weights[base] // max(parts, 1)
    ranges.append((start, max(table.end, start), held))
    return ranges


def message_counts(store: Store, heads: Rows) -> Rows:
    """Return the number of half messages of each transaction."""
    counts: Rows = heads["part"] & ~FIRST
    parts = store.core.parts
    if parts:
        for at, head in enumerate(heads["half_offset"].tolist()):
            if head in parts:
                counts[at] = parts[head].messages
    return counts


def started_at_ms(store: Store, heads: Rows) -> Rows:
    """Return the time from which each age counts: when it was stored or, if later, resumed."""
    started: Rows = heads["stored_at_ms"].copy()
    resumed = store.core.resumed_at_ms
    if resumed:
        for at, head in enumerate(heads["half_offset"].tolist()):
            started[at] = max(resumed.get(head, 0), started[at])
    return started


def _page(found: list[Rows], next_start: int | None) -> TransactionPage:
    return TransactionPage(np.concatenate([np.empty(0, dtype=_HEAD), *found]), next_start)


def _blocks(
    table: StateTable, start: int, end: int, states: Collection[State]
) -> Iterator[tuple[int, int]]:
    """Yield ranges within chunks that may hold rows in these states."""
    for base in _bases(table, start, end, states):
        last = min(base + table.chunk_rows, end)
        for first in range(max(base, start), last, BLOCK_ROWS):
            yield first, min(first + BLOCK_ROWS, last)


def _bases(table: StateTable, start: int, end: int, states: Collection[State]) -> list[int]:
    """Return the bases of chunks that may hold rows in these states."""
    rows = table.chunk_rows
    bases = {half - half % rows for half in table.survivors.between(start, end)}
    if _DECIDED.isdisjoint(states):
        bases.update(base for base, chunk in table.chunks.items() if chunk.needed)
    else:
        bases.update(table.chunks)
        bases.update(chunk.base for chunk in table.files.chunks)
    return sorted(base for base in bases if base + rows > start and base < end)


def _heads_in(
    store: Store, block: tuple[int, int], wanted: WantedHeads, limit: int
) -> tuple[Rows, int | None]:
    """Return at most ``limit`` heads of a block, and where the next one is if there are more."""
    table = store.table
    base = block[0] - block[0] % table.chunk_rows
    chunk = table.chunks.get(base)
    kept = [
        table.survivors.rows[row]
        for row in table.survivors.between(*block)
        if table.place(row)[0] is None
    ]
    # One more head tells where the next page begins. Survivors replace their rows in the file.
    heads, more = np.empty(0, dtype=_HEAD), limit + 1 + len(kept)
    if chunk is not None:
        heads = _from_chunk(chunk, block, wanted, more)
    elif not _DECIDED.isdisjoint(wanted.states):
        heads = _from_file(table, base, block, wanted, more)
    if kept:
        is_older = ~np.isin(heads["half_offset"], [half.half_offset for half in kept])
        heads = np.concatenate([heads[is_older], _from_halves(kept, wanted)])
        # Sort by one column: sorting whole records takes a hundred times as long.
        heads = heads[np.argsort(heads["half_offset"])]
    next_start = int(heads["half_offset"][limit]) if len(heads) > limit else None
    return _without_later(store, heads[:limit]), next_start


def _without_later(store: Store, heads: Rows) -> Rows:
    """Return these heads without the first rows of later requests of a transaction."""
    later = store.core.heads
    if later:
        is_first = [row not in later for row in heads["half_offset"].tolist()]
        heads = heads[np.array(is_first, dtype=np.bool_)]
    return heads


def _column(chunk: Chunk, at: Rows | slice, name: str) -> Rows:
    column: Rows = (chunk.locations() if name == "location" else chunk.view(name))[at]
    return column


def _from_chunk(chunk: Chunk, block: tuple[int, int], wanted: WantedHeads, limit: int) -> Rows:
    at = max(block[0] - chunk.base, chunk.skipped)
    here = slice(at, max(block[1] - chunk.base, at))
    return _picked(partial(_column, chunk, here), chunk.base + at, wanted, limit)


def _from_file(
    table: StateTable, base: int, block: tuple[int, int], wanted: WantedHeads, limit: int
) -> Rows:
    first = max(block[0], table.start)
    if first >= block[1] or all(chunk.base != base for chunk in table.files.chunks):
        return np.empty(0, dtype=_HEAD)
    rows = table.files.rows(base, first - base, block[1] - first)
    return _picked(rows.__getitem__, first, wanted, limit)


def _picked(column: Callable[[str], Rows], first: int, wanted: WantedHeads, limit: int) -> Rows:
    """Return at most ``limit`` wanted heads; the columns start at row ``first``."""
    is_head = (column("part") >= FIRST) & (column("size") > 0) & (column("origin") != PLAIN)
    hits = np.flatnonzero(is_head & wanted.are(column))[:limit]
    heads = np.empty(len(hits), dtype=_HEAD)
    heads["half_offset"] = hits + first
    for name in _NAMES[1:]:
        heads[name] = column(name)[hits]
    return heads


def _from_halves(halves: list[Half], wanted: WantedHeads) -> Rows:
    heads = np.array(
        [
            tuple(int(getattr(half, name)) for name in _NAMES)
            for half in halves
            if half.part & FIRST and half.origin != PLAIN
        ],
        dtype=_HEAD,
    )
    return heads[wanted.are(heads.__getitem__)]


class WantedHeads(NamedTuple):
    """The states of the listed heads, and when they are due."""

    states: Collection[State]
    due_by: DueBy | None = None

    def are(self, column: Callable[[str], Rows]) -> Rows:
        """Return which rows have such a state and are due."""
        state = column("state")
        # Plain numbers: comparing with an enum takes several times as long.
        wanted = [int(one) for one in self.states]
        found: Rows = state == wanted[0]
        for code in wanted[1:]:
            found |= state == code
        if self.due_by is not None:
            is_due = column("next_at_ms") <= self.due_by.check_at_ms
            found &= is_due | (column("stored_at_ms") <= self.due_by.stored_at_ms)
        return found
