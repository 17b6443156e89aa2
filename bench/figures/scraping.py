"""The cost of counting per request, and the time a scrape takes and blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bench.figures.common import report, scratch
from escrowmq.broker.pages.metrics import MetricsPage
from escrowmq.broker.state.counting import BrokerCounts
from escrowmq.broker.write.inbox import QueuedCommand
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import Engine, message
from escrowmq.transaction.commands import Append, Command, End, Prepare
from tests.unit.broker.native_peer import ask, decide, hold, sent
from tests.unit.broker.wire import Peer, serving

TURNS = 5_000
RUNS = 50
#: Commands that share a flush under load.
BATCH = 64
TOPICS = 1_000
QUEUES = 4
SCRAPES = 5


def counting() -> None:
    """Report CPU nanoseconds for each kind of event that is counted; the best of several runs."""
    engine = Engine()
    half = Prepare(group="pay", transaction_id="t", messages=(message(unique_key="t"),))
    commands: dict[str, Command] = {
        "half": half,
        "commit": End(half_offset=0, resolution=Resolution.COMMIT, by="p"),
        "message": Append(messages=(message(),)),
    }
    counts = BrokerCounts(engine.store)
    for name, command in commands.items():
        one = engine.submit(command)
        batch = [QueuedCommand(command, lambda _: None, 0)] * BATCH
        # Only the first decision of each kind has records that give names; drop those.
        decided = [msgspec.structs.replace(one, records=one.records[-1:])] * BATCH
        work = partial(counts.durable, batch, decided)
        _report(f"count_{name}_ns", work, BATCH)
    counts.rpcs.codes = {10}
    began = time.perf_counter()
    _report("count_request_ns", lambda: counts.rpcs.note(10, 0, began, 0))
    _report("nothing_ns", lambda: None)


def _report(figure: str, work: Callable[[], None], batch: int = 1) -> None:
    turns = TURNS // batch
    best = min(_took_s(work, turns) for _ in range(RUNS))
    report(figure, best / (turns * batch) * 1e9, "ns")


def _took_s(work: Callable[[], None], turns: int) -> float:
    began = time.thread_time()
    for _ in range(turns):
        work()
    return time.thread_time() - began


def scrape() -> None:
    """Report one scrape of 1,000 topics, each with a group that lags in all of its queues."""
    with scratch() as path:
        asyncio.run(_scrape(path))


async def _scrape(path: Path) -> None:
    async with serving(path, topics={"queue_count": QUEUES}) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(TOPICS):
            topic = f"topic-{number}"
            rows = [sent(topic=topic, queue_id=queue) for queue in range(QUEUES)]
            await ask(peer, NativeCode.SEND_MANY, rows=rows)
            held = await hold(peer, topic, *rows)
            await decide(peer, held.header.half_offset)
            for queue in range(QUEUES):
                server.broker.meta.set_offset("group", topic, queue, 1)
        page = MetricsPage(lambda: server.broker, cluster="c", name="b")
        best_s = held_s = 1e9
        body = b""
        for _ in range(SCRAPES):
            began = time.perf_counter()
            beating = asyncio.ensure_future(_longest_turn_s())
            body = (await page()).body
            best_s = min(best_s, time.perf_counter() - began)
            beating.cancel()
            held_s = min(held_s, await beating)
        details = {"topics": TOPICS, "bytes": len(body), "lines": body.count(b"\n")}
        report("scrape_ms", best_s * 1e3, "ms", loop_held_ms=round(held_s * 1e3, 2), **details)


async def _longest_turn_s() -> float:
    """Run until cancelled; return the CPU time of the longest turn of other tasks."""
    longest_s = 0.0
    try:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began)
    except asyncio.CancelledError:
        return longest_s
