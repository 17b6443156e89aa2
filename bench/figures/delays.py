"""How fast overdue messages become visible, and how long one slice blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from asyncio.events import Handle
from collections.abc import Callable
from random import Random

import msgspec

from bench.figures.common import NOW_MS, message, opened, report, scratch
from escrowmq.broker.write.releasing import Releasing
from escrowmq.broker.write.writer import Writer
from escrowmq.store.store import Store
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Append

WAITING = 1_000_000
#: How many of the waiting messages are overdue when the broker looks.
OVERDUE = 300_000
#: Messages that have waited long enough to be copied when they become visible.
COPIED = 20_000
HOUR_MS = 3_600_000
BODY = b"x" * 200
BATCH = 1_000
QUEUES = 8


def run() -> None:
    """Report overdue messages that become visible per second, with a million waiting."""
    _release("delays", WAITING, OVERDUE, BATCH, copy_after_ms=24 * HOUR_MS)
    _release("delays_copied", COPIED, COPIED, 1, copy_after_ms=1_000)
    _release("delays_copied_batches", COPIED, COPIED, BATCH, copy_after_ms=1_000)


def _release(figure: str, waiting: int, overdue: int, batch: int, *, copy_after_ms: int) -> None:
    with scratch() as path:
        store, _ = opened(path, copy_after_ms=copy_after_ms)
        _fill(store, waiting, overdue, batch)
        took_s, cpu_s, longest_s = asyncio.run(_measured(store, waiting - overdue))
        cpu_us = round(cpu_s / overdue * 1e6, 2)
        details = {"waiting": waiting, "overdue": overdue, "cpu_us_each": cpu_us}
        report(f"{figure}_per_second", overdue / took_s, "messages/s", **details)
        report(f"{figure}_longest_slice", longest_s * 1e3, "ms", **details)


def _fill(store: Store, waiting: int, overdue: int, batch: int) -> None:
    rng = Random(7)  # noqa: S311 - not a secret
    for first in range(0, waiting, batch):
        messages = tuple(
            msgspec.structs.replace(
                message(number, BODY, number % QUEUES),
                deliver_at_ms=NOW_MS
                + (rng.randrange(1, 60_000) if number < overdue else 24 * HOUR_MS),
            )
            for number in range(first, first + batch)
        )
        store.execute(Append(messages=messages), NOW_MS)
        if first % BATCH == 0:
            store.sync()
            if store.checkpoint_due:
                store.checkpoint()
    store.sync()


async def _measured(store: Store, left: int) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds, and the CPU seconds of the longest slice."""
    clock = ManualClock(NOW_MS + 60_000)
    writer = Writer(store, clock)
    longest = _Longest()
    began, cpu_began = time.perf_counter(), time.process_time()
    with longest:
        await Releasing(store, writer, clock).release_due()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    assert store.table.needed == left
    await writer.close()
    return took_s, cpu_s, longest.seconds


class _Longest:
    """CPU seconds of the longest callback on this thread's event loop."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._run: Callable[[Handle], None] = Handle._run  # noqa: SLF001 - asyncio has no hook

    def __enter__(self) -> None:
        def run_timed(handle: Handle) -> None:
            began = time.thread_time()
            self._run(handle)
            self.seconds = max(self.seconds, time.thread_time() - began)

        Handle._run = run_timed  # type: ignore[method-assign,assignment]  # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        Handle._run = self._run  # type: ignore[method-assign,assignment]  # noqa: SLF001
