"""Shared parts of all figures: a scratch store, messages like a stock client's, fair comparison."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.recovery.recovery import RecoveryResult, open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import End, HoldReply, Prepare
from escrowmq.transaction.policy import CheckPolicy

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOW_MS = 1_700_000_000_000
RUNS = 7


def report(figure: str, value: float, unit: str, **details: object) -> None:
    """Print one figure as one line."""
    print(json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, **details}))
    sys.stdout.flush()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Give a directory on a real disk; the default temporary directory may be in memory."""
    base = Path(os.environ.get("ESCROWMQ_BENCH_DIR", "."))
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def opened(path: Path, **config: object) -> tuple[Store, RecoveryResult]:
    """Open a store with the default settings, changed by `config`."""
    path.mkdir(exist_ok=True)
    return open_store(OsDisk(path), StoreConfig(**config), CheckPolicy(), HOST)  # type: ignore[arg-type]


def message(number: int, body: bytes, queue_id: int = 0) -> SentMessage:
    """Make a message as a stock client would send it."""
    key = f"7F000001000018B4AAC2{number:012X}"
    order = f"order-{number}"
    properties = (
        f"UNIQ_KEY\x01{key}\x02KEYS\x01{order}\x02TAGS\x01paid\x02TRAN_MSG\x01true\x02"
        f"PGROUP\x01orders\x02WAIT\x01true\x02"
    ).encode()
    return SentMessage(
        topic="order-paid",
        queue_id=queue_id,
        body=body,
        properties=properties,
        tags="paid",
        keys=(order,),
        unique_key=key,
        born_at_ms=NOW_MS,
    )


def alternate(
    ours: Callable[[int], float], baseline: Callable[[int], float], runs: int = RUNS
) -> tuple[float, float, float]:
    """Return the medians of both and of their ratio; the order alternates from run to run."""
    pairs = []
    for run in range(-1, runs):
        order = (ours, baseline) if run % 2 else (baseline, ours)
        results = {work: work(run) for work in order}
        if run >= 0:  # The first run is a warm-up.
            pairs.append((results[ours], results[baseline]))
    return (
        statistics.median(mine for mine, _ in pairs),
        statistics.median(bare for _, bare in pairs),
        statistics.median(mine / bare for mine, bare in pairs),
    )


def held(
    store: Store, messages: tuple[SentMessage, ...], transaction_id: str, now_ms: int = NOW_MS
) -> int:
    """Hold a transaction; return its half offset."""
    prepare = Prepare(group="orders", transaction_id=transaction_id, messages=messages)
    reply = store.execute(prepare, now_ms).reply
    assert isinstance(reply, HoldReply)
    return reply.half_offset


def commit(store: Store, half_offset: int, now_ms: int = NOW_MS) -> None:
    """Commit a transaction."""
    ending = End(half_offset=half_offset, resolution=Resolution.COMMIT, by="bench")
    store.execute(ending, now_ms)
