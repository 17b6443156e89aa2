"""How long expiring names block the event loop: 100,000 origins, 1,000,000 offsets."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from pathlib import Path

from bench.figures.common import report, scratch
from escrowmq.broker.server import Server
from escrowmq.model.catalog import Group, Topic
from escrowmq.model.limits_config import DAY_MS, LimitsConfig
from escrowmq.store.store import Store
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import GroupPut, NamedOrigin, TopicPut
from tests.unit.broker.wire import T0, serving

LIMITS = LimitsConfig()
GROUPS = TOPICS = 2_000
"""Fewer than the limits allow, because each takes a flush of its own."""
OFFSETS_EACH = LIMITS.offsets_max // GROUPS


def run() -> None:
    """Let all names of a full broker expire, and report the longest turn of the loop."""
    with scratch() as path:
        asyncio.run(_run(path))


async def _run(path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(path, clock) as server:
        await server.broker.writer.alone(_fill)
        for number in range(GROUPS):
            for queue_id in range(OFFSETS_EACH):
                server.broker.meta.set_offset(f"group-{number}", "read", queue_id, 0)
        gc.collect()
        gc.freeze()
        clock.advance(ms=LIMITS.unused_expire_ms + DAY_MS + 1)
        turns = _Turns()
        watching = asyncio.ensure_future(turns.watch())
        began = time.perf_counter()
        await server.broker.expiring.run()
        took_s = time.perf_counter() - began
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        _report(server, turns, took_s)


def _fill(store: Store) -> None:
    where = Where(0, 0, T0)
    store.apply(
        [NamedOrigin(number, f"producer-{number}", "", 0) for number in range(LIMITS.origins_max)],
        where,
    )
    store.apply(
        [GroupPut(Group(name=f"group-{number}"), is_made_by_use=True) for number in range(GROUPS)],
        where,
    )
    store.apply(
        [
            TopicPut(Topic(name=f"topic-{number}"), number + 1, is_made_by_use=True)
            for number in range(TOPICS)
        ],
        where,
    )
    store.publish()


class _Turns:
    """Watches how much thread time each turn of the loop takes."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.count = 0

    async def watch(self) -> None:
        """Measure one turn after the other until cancelled."""
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1_000)
            self.count += 1


def _report(server: Server, turns: _Turns, took_s: float) -> None:
    report(
        "expiry_longest_turn_ms",
        turns.longest_ms,
        "ms",
        turns=turns.count,
        took_s=round(took_s, 1),
        offsets_left=len(server.broker.meta.offsets),
        **{f"expired_{kind}": count for kind, count in server.broker.expiring.counts.items()},
    )
