"""Makes delayed messages visible when they are due, in the order of their due times.

A backlog of overdue messages, as after a long stop, is released slice by slice. Between two slices
the event loop serves other clients. Old messages are copied; another thread reads them first, so
that the event loop finds them in memory and does not wait for the disk.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import numpy as np

from escrowmq.broker.write.store_time import StoreClock
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Release
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.decisions.carrying import is_alone, is_stale
from escrowmq.transaction.table import FIRST, Half

SLICE_ROWS_MAX = 2_048
"""Messages that one slice makes visible: about 5 ms of work."""

SLICE_ROWS_MIN = 128
"""The fewest rows that a slice looks at."""

COPY_COST = 4
"""A message that must be copied takes as long as this many that need not be."""

COPIED_REQUEST_COST = 16
"""Extra cost of copying a request of half messages or several messages, which has its own frame."""

COPY_COST_BYTES = 16_384
"""Bytes of a copied message that take as long as one message that is not copied."""


class Releasing:
    """Releases the due messages of one broker."""

    def __init__(self, store: Store, writer: Writer, clock: StoreClock) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._working = asyncio.Lock()
        #: Rows to look at for the next slice: twice as many as the last slice had time for.
        self._rows_max = SLICE_ROWS_MAX

    async def release_due(self) -> None:
        """Make all due messages visible."""
        async with self._working:
            while rows := await self._next_slice():
                decision = await self._writer.submit(Release(half_offsets=tuple(rows)))
                if not decision.records:
                    # Another command changed these rows meanwhile: look again at the next tick.
                    return

    async def _next_slice(self) -> list[int]:
        releases = self._store.table.releases
        now_ms = self._clock.now_ms()
        while releases.sort_one(now_ms):  # noqa: ASYNC110 - each turn does some of it
            await asyncio.sleep(0)
        rows, copied = self._affordable(releases.first(now_ms, self._rows_max), now_ms)
        self._rows_max = min(max(2 * len(rows), SLICE_ROWS_MIN), SLICE_ROWS_MAX)
        if copied:
            await asyncio.to_thread(self._read_ahead, copied)
        return rows

    def _read_ahead(self, halves: list[Half]) -> None:
        """Bring these messages into memory; runs in another thread."""
        for half in halves:
            # Retention may delete the segment meanwhile, and has carried the message forward.
            with suppress(OSError, StoreCorrupt):
                self._store.log.peek(half.location, half.size)

    def _affordable(self, rows: list[int], now_ms: int) -> tuple[list[int], list[Half]]:
        """Return as many of these rows as fit one slice, at least one, and which need a copy."""
        core = self._store.core
        held = self._store.table.columns(np.array(rows, dtype=np.int64))
        is_fresh = held.is_here & (now_ms - held.stored_at_ms < core.copy_after_ms)
        requests: set[int] = set()
        copied: list[Half] = []
        cost = 0
        for index, is_cheap in enumerate(is_fresh.tolist()):
            cost += 1
            if not is_cheap:
                half = core.row(rows[index])
                if is_stale(core, half, now_ms):
                    copied.append(half)
                    # A copy includes the whole request.
                    if half.first not in requests:
                        requests.add(half.first)
                        cost += _copy_cost(core, half)
            if cost > SLICE_ROWS_MAX:
                return rows[: max(index, 1)], copied
        return rows, copied


def _copy_cost(core: Transactions, half: Half) -> int:
    """Return the approximate cost of copying the request of a row."""
    row_cost = COPY_COST + half.size // COPY_COST_BYTES
    if is_alone(half):
        return row_cost
    first = core.table.get(half.first)
    count = 1 if first is None else first.part & ~FIRST
    return COPIED_REQUEST_COST + count * row_cost
