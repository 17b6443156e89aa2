"""How long retention blocks the event loop with very many undecided half messages.

Old segments hold undecided half messages, and 10,000 queues with one message each. The writer and
retention run as in a broker while a client ends transactions. The longest slice is the most CPU
time that any one callback of the loop took, retention's or another's.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.figures.callbacks import longest_callback
from bench.figures.common import NOW_MS, held, message, opened, report, scratch
from escrowmq.broker.write.retaining import Retaining
from escrowmq.broker.write.writer import Writer
from escrowmq.cli.run.serving import COLLECT_AFTER
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.reading.undecided_counts import standing
from escrowmq.store.store import Store
from escrowmq.store.table.dues import Dues
from escrowmq.store.table.undecided import held_back, prepared_by_origin
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.commands import Append, End

T = TypeVar("T")

COUNTS = (20_000, 320_000)
QUEUES = 10_000
SEGMENT_BYTES = 64 * 1024 * 1024
RETENTION_MS = 72 * 3_600_000
BODY = bytes(200)
ENDS_MAX = 400
PAUSE_S = 0.005


def run() -> None:
    """Measure each count twice: with rows in chunks, and with rows in the map of survivors."""
    for count in COUNTS:
        with scratch() as path:
            place = path / "store"
            fill(place, count)
            measure(place, count, "chunks", ended=0)
            # A rebuild from a log that no longer has their first frames makes all rows survivors.
            (place / "checkpoint").write_bytes(b"damaged")
            measure(place, count, "survivors", ended=ENDS_MAX)


def settings() -> dict[str, object]:
    """Settings of the store."""
    return {"segment_bytes_max": SEGMENT_BYTES, "retention_ms": RETENTION_MS, "id_window_ms": 0}


def fill(path: Path, count: int) -> None:
    """Store a message in each queue, and undecided transactions of one message each."""
    store, _ = opened(path, **settings())
    for number in range(QUEUES):
        append(
            store, SentMessage(topic=f"t{number % 100}", queue_id=number // 100, body=BODY), NOW_MS
        )
    for number in range(count):
        one = message(number, BODY)
        held(store, (one,), one.unique_key)
        if number % 1_000 == 0:
            store.sync()
    store.sync()
    store.close()


def append(store: Store, one: SentMessage, at_ms: int) -> None:
    """Store an ordinary message."""
    store.execute(Append(messages=(one,)), at_ms)


def measure(path: Path, count: int, place: str, *, ended: int) -> None:
    """Make everything in the store old, then measure the run of retention that retires it."""
    store, _ = opened(path, **settings())
    clock = ManualClock(max(store.last_at_ms, NOW_MS) + RETENTION_MS + 1)
    # A segment is old once the segment after it is old.
    filler = SentMessage(topic="filler", queue_id=0, body=bytes(3 * 1024 * 1024))
    while store.log.segments[-1].first_at_ms < clock.now_ms():
        append(store, filler, clock.now_ms())
        store.sync()
    store.checkpoint()
    clock.advance(ms=RETENTION_MS)
    asyncio.run(_measure(store, clock, count, place, ended))


async def _measure(store: Store, clock: ManualClock, count: int, place: str, ended: int) -> None:
    # The same settings as in ``escrowmq serve``.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    writer = Writer(store, clock)
    retaining = Retaining(store, writer, clock.now_ms)
    is_over = asyncio.Event()
    with longest_callback() as longest:
        client = asyncio.ensure_future(_end_some(writer, is_over, ended))
        began = time.perf_counter()
        log_start = store.log.start
        await retaining.run()
        took = time.perf_counter() - began
        is_over.set()
        waited = await client
    assert not retaining.waits, retaining.waits
    assert store.log.start > log_start
    report(
        "retention_longest_slice_ms",
        longest.took_s * 1e3,
        "ms",
        undecided=count,
        rows=place,
        queues=len(store.queues),
        callback=longest.callback,
        carried=retaining.carried,
        took_s=round(took, 2),
        ends=len(waited),
        end_ms_max=round(max(waited) * 1e3, 2),
    )
    _report_looks(store, count, place)
    await writer.close()


def _report_looks(store: Store, count: int, place: str) -> None:
    """Time each scan over all undecided rows that blocks the event loop until it ends."""
    queues = list(store.core.names.queues)
    looks: dict[str, Callable[[], object]] = {
        "status": lambda: standing(store),
        "metrics": lambda: held_back(store.table),
        "checks by group": lambda: prepared_by_origin(store.table),
        "checks due": lambda: Dues(store.table, store.core.names).look(NOW_MS),
        "deletion of all topics": lambda: store.table.held_in(queues, 100),
    }
    for what, look in looks.items():
        _report_look(what, look, count, place)
    job = _report_look("freeze of a checkpoint", store.begin_checkpoint, count, place)
    job.write()
    store.end_checkpoint(job)


def _report_look(what: str, look: Callable[[], T], count: int, place: str) -> T:
    began = time.thread_time()
    found = look()
    took_ms = (time.thread_time() - began) * 1e3
    report("undecided_look_ms", took_ms, "ms", what=what, undecided=count, rows=place)
    return found


async def _end_some(writer: Writer, is_over: asyncio.Event, first: int) -> list[float]:
    """Commit a transaction every few milliseconds; return how long each took."""
    waited = []
    for half_offset in range(first, first + ENDS_MAX):
        began = time.perf_counter()
        end = End(half_offset=half_offset, resolution=Resolution.COMMIT, by="bench")
        decision = await writer.submit(end)
        assert decision.refused is None, decision.refused
        waited.append(time.perf_counter() - began)
        if is_over.is_set():
            break
        await asyncio.sleep(PAUSE_S)
    return waited
