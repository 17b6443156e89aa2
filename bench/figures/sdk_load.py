"""Load from our SDK, in a process of its own, so that only the client is measured.

    python -m bench.figures.sdk_load WHAT ADDRESS TOPIC COUNT IN_FLIGHT BODY_BYTES

The last line of the output is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count

from escrowmq import AsyncProducer, Message, Resolution

WARM_UP = 5
"""The warm-up before the clocks start is one part in this many of the load."""


async def transactions(
    producer: AsyncProducer, topic: str, total: int, in_flight: int, body: bytes
) -> int:
    """Send and commit, `in_flight` at a time; return how many failed."""
    numbers = count()
    failed = 0

    async def work() -> None:
        nonlocal failed
        while (number := next(numbers)) < total:
            try:
                held = await producer.send_half(topic, body, key=f"order-{number}")
                await producer.end(held, Resolution.COMMIT)
            except Exception as error:  # noqa: BLE001 - counted
                failed += 1
                print(repr(error), file=sys.stderr)

    await asyncio.gather(*(work() for _ in range(in_flight)))
    return failed


async def bulk(producer: AsyncProducer, topic: str, total: int, size: int, body: bytes) -> int:
    """Send messages, `size` in one call."""
    for start in range(0, total, size):
        many = range(start, min(start + size, total))
        await producer.send_many([Message(topic=topic, body=body) for _ in many])
    return 0


async def single(producer: AsyncProducer, topic: str, total: int, _size: int, body: bytes) -> int:
    """Send messages one after the other."""
    for _ in range(total):
        await producer.send(topic, body)
    return 0


Load = Callable[[AsyncProducer, str, int, int, bytes], Awaitable[int]]
LOADS: dict[str, Load] = {"transactions": transactions, "bulk": bulk, "single": single}


async def main() -> None:
    """Warm up, then measure."""
    what, address, topic, total, in_flight, body_bytes = sys.argv[1:]
    load, body = LOADS[what], b"x" * int(body_bytes)

    def committed(_half: object) -> Resolution:
        return Resolution.COMMIT

    async with AsyncProducer(address, group="bench", checker=committed) as producer:
        await load(producer, topic, int(total) // WARM_UP, int(in_flight), body)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        failed = await load(producer, topic, int(total), int(in_flight), body)
        told = {
            "transactions": int(total),
            "failed": failed,
            "cpu_s": time.process_time() - cpu_s,
            "wall_s": time.perf_counter() - wall_s,
        }
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main())
