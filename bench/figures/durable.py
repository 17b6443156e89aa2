"""Transactions per second: flushed to disk, against written to the kernel only."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from bench.figures.common import alternate, message, opened, report, scratch
from escrowmq.broker.write.writer import Writer
from escrowmq.model.clock import SystemClock
from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import End, HoldReply, Prepare


def run() -> None:
    """Compare durable transactions with unflushed ones, and with the bare disk."""
    with scratch() as path:
        numbers = iter(range(10**9))

        def rate(durability: str, in_flight: int, count: int) -> float:
            place = path / f"store-{next(numbers)}"
            return asyncio.run(transactions_per_second(place, durability, in_flight, count))

        def bare_flushes(_run: int) -> float:
            """Flushes per second of 600-byte appends, the size of a half message's frame."""
            file = os.open(path / f"bare-{next(numbers)}", os.O_RDWR | os.O_CREAT)
            data = os.urandom(600)
            started = time.perf_counter()
            for number in range(500):
                os.pwrite(file, data, number * len(data))
                os.fdatasync(file)
            took = time.perf_counter() - started
            os.close(file)
            return 500 / took

        mine, base, ratio = alternate(
            lambda _run: rate("fsync", 256, 8_000), lambda _run: rate("os", 256, 8_000)
        )
        report("durable_256_ratio", ratio, "x", per_second=mine, os_per_second=base)
        mine, base, ratio = alternate(lambda _run: rate("fsync", 1, 300), bare_flushes)
        report("durable_1_ratio", 2 * ratio, "x", per_second=mine, flushes_per_second=base)


async def transactions_per_second(path: Path, durability: str, in_flight: int, count: int) -> float:
    """Send a half message, then commit it, both acknowledged, in `in_flight` tasks at once."""
    store, _ = opened(path, durability=durability)
    writer = Writer(store, SystemClock())
    body = os.urandom(300)
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            one = message(number, body, queue_id=number % 4)
            prepare = Prepare(group="orders", transaction_id=one.unique_key, messages=(one,))
            held = (await writer.submit(prepare)).reply
            assert isinstance(held, HoldReply)
            ending = End(half_offset=held.half_offset, resolution=Resolution.COMMIT, by="bench")
            decision = await writer.submit(ending)
            assert decision.refused is None

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(client())
    took = time.perf_counter() - started
    await writer.close()
    return count / took
