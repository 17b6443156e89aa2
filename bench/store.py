"""What the store costs, as ratios against a baseline of the same run.

    make bench NAME=store [ARGS="append durable"]

Prints one JSON object per figure.  Every ratio is the median over runs in which ours and the
baseline alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from escrowmq.broker.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.message import Message
from escrowmq.protocol.stored_message import encoded_size
from escrowmq.store.config import StoreConfig
from escrowmq.store.disk import OsDisk
from escrowmq.store.frames import HEAD_BYTES, stated_head
from escrowmq.store.recovery import Found, open_store
from escrowmq.store.store import Store
from escrowmq.transaction.commands import Append, End, Held, Prepare
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import Resolution

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
NOW_MS = 1_700_000_000_000
RUNS = 7


def report(figure: str, value: float, unit: str, **details: object) -> None:
    """One figure, one line."""
    print(json.dumps({"figure": figure, "value": round(value, 4), "unit": unit, **details}))
    sys.stdout.flush()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory on a real disk; the default for temporary files may be memory."""
    base = Path(os.environ.get("ESCROWMQ_BENCH_DIR", "."))
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def opened(path: Path, **config: object) -> tuple[Store, Found]:
    """A store with room for everything."""
    path.mkdir(exist_ok=True)
    return open_store(OsDisk(path), StoreConfig(**config), CheckPolicy(), HOST)  # type: ignore[arg-type]


def message(number: int, body: bytes, queue_id: int = 0) -> Message:
    """A message as a stock client would send it."""
    key = f"7F000001000018B4AAC2{number:012X}"
    order = f"order-{number}"
    properties = (
        f"UNIQ_KEY\x01{key}\x02KEYS\x01{order}\x02TAGS\x01paid\x02TRAN_MSG\x01true\x02"
        f"PGROUP\x01orders\x02WAIT\x01true\x02"
    ).encode()
    return Message(
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
    """Medians of both and of their ratio; the order changes from run to run."""
    pairs = []
    for run in range(-1, runs):
        order = (ours, baseline) if run % 2 else (baseline, ours)
        results = {work: work(run) for work in order}
        if run >= 0:  # The first warms up.
            pairs.append((results[ours], results[baseline]))
    return (
        statistics.median(mine for mine, _ in pairs),
        statistics.median(bare for _, bare in pairs),
        statistics.median(mine / bare for mine, bare in pairs),
    )


# CPU per message.


def bench_append() -> None:
    """Encode, append, state table and queue entry, in batches of 100."""
    batches, size = 200, 100
    commands = [
        [message(batch * size + n, os.urandom(300), queue_id=n % 4) for n in range(size)]
        for batch in range(batches)
    ]
    with scratch() as path:
        bare = os.open(path / "bare", os.O_RDWR | os.O_CREAT)
        store, _ = opened(path / "store", durability="os")
        frames: list[tuple[bytes, ...]] = []
        place = 0

        def baseline(_run: int) -> float:
            """Checksum of each body, checksum of each frame, and the write: the same bytes."""
            nonlocal place
            started = time.process_time()
            for batch, written in zip(commands, frames, strict=True):
                for one in batch:
                    zlib.crc32(one.body)
                for frame in written:
                    zlib.crc32(frame)
                    os.pwrite(bare, frame, place)
                    place += len(frame)
            return (time.process_time() - started) / (batches * size) * 1e6

        def transactions(run: int) -> float:
            """One transaction of 100 half messages, committed, in each batch."""
            started = time.process_time()
            for number, batch in enumerate(commands):
                prepare = Prepare(
                    group="orders", transaction_id=f"{run}-{number}", messages=tuple(batch)
                )
                held = store.execute(prepare, NOW_MS).reply
                assert isinstance(held, Held)
                store.execute(
                    End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench"),
                    NOW_MS,
                )
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        def singles(run: int) -> float:
            """100 transactions of one half message each, committed, in each batch."""
            started = time.process_time()
            for batch in commands:
                held = [
                    store.execute(
                        Prepare(
                            group="orders",
                            transaction_id=f"{run}{one.unique_key}",
                            messages=(one,),
                        ),
                        NOW_MS,
                    ).reply
                    for one in batch
                ]
                for one in held:
                    assert isinstance(one, Held)
                    store.execute(
                        End(half_offset=one.half_offset, resolution=Resolution.COMMIT, by="bench"),
                        NOW_MS,
                    )
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        def ordinary(_run: int) -> float:
            """Ordinary messages, visible at once."""
            started = time.process_time()
            for batch in commands:
                store.execute(Append(messages=tuple(batch)), NOW_MS)
                store.sync()
            return (time.process_time() - started) / (batches * size) * 1e6

        for figure, ours in (
            ("append_batch100_ratio", transactions),
            ("append_ordinary100_ratio", ordinary),
            ("append_single_transactions_ratio", singles),
        ):
            frames = frames_of(store, ours, batches)
            mine, base, ratio = alternate(ours, baseline)
            report(figure, ratio, "x", us_per_message=mine, baseline_us=base)
        store.log.close()
        os.close(bare)


def frames_of(store: Store, work: Callable[[int], float], batches: int) -> list[tuple[bytes, ...]]:
    """The frames that one run writes, by batch."""
    start = store.log.end
    work(-2)
    frames = []
    while start < store.log.end:
        head = stated_head(store.log.read(start, HEAD_BYTES))
        assert head is not None
        frames.append(store.log.read(start, head.length))
        start += head.length
    each = len(frames) // batches
    return [tuple(frames[at : at + each]) for at in range(0, len(frames), each)]
