"""How long an orderly stop takes with very many new queues."""

from __future__ import annotations

import time

import msgspec

from bench.figures.common import NOW_MS, message, opened, report, scratch
from escrowmq.transaction.commands import Append

QUEUES = 10_000
BATCH = 100


def run() -> None:
    """Report the seconds that a stop takes, and its CPU seconds."""
    with scratch() as path:
        store, _ = opened(path)
        for first in range(0, QUEUES, BATCH):
            store.execute(
                Append(
                    messages=tuple(
                        msgspec.structs.replace(message(number, b"x"), topic=f"topic-{number}")
                        for number in range(first, first + BATCH)
                    )
                ),
                NOW_MS,
            )
            store.sync()
        began, cpu = time.perf_counter(), time.process_time()
        store.close()
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        report("stop_new_queues", took_s, "s", queues=QUEUES, cpu_s=round(cpu_s, 3))
