"""Runs retention while clients are served, in short steps.

The store defines the steps (``retirement.py``); this module does them. Messages that are carried
forward go through the writer like everything else. Work that waits for the disk goes to another
thread. After each slice other work gets its turn, so retention takes only a part of the event
loop's time.

Only this module tells retention the time, and whether it may delete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import thread_time

from escrowmq.broker.write.writer import Writer
from escrowmq.model.event_log import event_log
from escrowmq.store.retention.retention import next_step, removable_below, retirements
from escrowmq.store.retention.retirement import (
    Aside,
    Carrying,
    Checkpointing,
    Removed,
    Step,
    Steps,
    Waits,
)
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Decision

log = event_log(__name__)

REST = 3
"""While clients are sending, a slice is followed by a pause this many times as long as it took."""


def _next_step(steps: Steps, decisions: Sequence[Decision] | None, _: Store) -> Step | None:
    return next_step(steps, decisions)


@dataclass(eq=False)
class Retaining:
    """Retention of one store. Use it from one event loop only."""

    store: Store
    writer: Writer
    now_ms: Callable[[], int]
    #: Whether deletion is allowed now; asked before each segment.
    may_delete: Callable[[], bool] = lambda: True
    is_working: bool = field(default=False, init=False)
    #: Why the last run did not delete everything old, and how much room was missing.
    waits: Waits = field(default=Waits.NO, init=False)
    missing_bytes: int = field(default=0, init=False)
    #: Totals since the broker's start.
    segments_removed: int = field(default=0, init=False)
    carried: int = field(default=0, init=False)

    @property
    def state(self) -> str:
        """What retention does, or what it waits for."""
        if self.is_working:
            return "working"
        return f"waits_for_{self.waits}" if self.waits else "idle"

    async def run(self) -> None:
        """Delete old segments, as far as there is room to carry forward what is still needed."""
        store, now_ms = self.store, self.now_ms()
        if self.is_working:
            return
        removed = Removed(log_start=store.log.start)
        if removable_below(store, now_ms) > store.log.start:
            self.is_working = True
            try:
                await self._run(removed, now_ms)
            finally:
                self.is_working = False
                self.segments_removed += removed.segments
                self.carried += removed.carried
        self._note(removed)

    async def _run(self, removed: Removed, now_ms: int) -> None:
        steps = retirements(self.store, now_ms, removed, self.may_delete)
        decisions: Sequence[Decision] | None = None

        while True:
            step = await self.writer.alone(partial(_next_step, steps, decisions))
            if step is None:
                return
            decisions = await self._do(step)

    async def _do(self, step: Step) -> Sequence[Decision]:
        decisions: Sequence[Decision] = ()
        if isinstance(step, Carrying):
            began = thread_time()
            decisions = await self.writer.carry(step.commands)
            await self._rest(thread_time() - began)
        elif isinstance(step, Aside):
            await self.writer.aside(step.work)
        elif isinstance(step, Checkpointing):
            await self.writer.checkpoint()
        else:
            await asyncio.sleep(0)
        return decisions

    async def _rest(self, used_s: float) -> None:
        # The time includes other work meanwhile, so retention rests longer under load.
        await asyncio.sleep(REST * used_s if self.writer.pace.is_in_use else 0)

    async def keep_reserve(self) -> None:
        """Make the reserve again, once there is enough room."""
        space = self.store.space
        if space.wants_reserve and not self.is_working:
            await self.writer.aside(space.reserve.make)

    def _note(self, removed: Removed) -> None:
        if removed.segments:
            facts = {"segments": removed.segments, "carried": removed.carried}
            log.info("segments_removed", extra={**facts, "log_start": removed.log_start})
        if removed.waits != self.waits:
            event = "retention_waits" if removed.waits else "retention_goes_on"
            why = removed.waits or self.waits
            log.warning(event, extra={"for": why, "missing_bytes": removed.missing_bytes})
        self.waits, self.missing_bytes = removed.waits, removed.missing_bytes
