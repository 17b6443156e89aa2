"""Many threads or tasks share one producer: no message is lost, duplicated or out of order.

    python -m tests.unit.client.soak --seconds 600

Each sender has its own key and numbers its messages. It sends them alone, in bulk and in
transactions. The messages of a key must then be in one queue, in this order, each once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from escrowmq.client.messages.messages import Message
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import ListQueuesHeader, ReadMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from tests.ledger.kill import broker

THREADS = 50
TASKS = 1_000
TOPIC = "soak"
#: Long, because the machine may be busy with other work.
TIMEOUT_S = 60.0
#: Messages that a sender makes visible in one round.
ROUND = 6


def numbered(key: str, number: int) -> Message:
    return Message(topic=TOPIC, body=f"{key}:{number}", key=key)


def soak_threads(name_server: str, is_over: Callable[[int], bool], prefix: str = "t") -> int:
    """Send from `THREADS` threads until `is_over`; return the number of messages."""
    failures: list[BaseException] = []
    rounds: dict[str, int] = {}

    with Producer(name_server, "soak", timeout_s=TIMEOUT_S) as producer:

        def work(key: str) -> None:
            try:
                done = 0
                while not is_over(done):
                    send_round(producer, key, done * ROUND)
                    done += 1
                rounds[key] = done
            except BaseException as failure:  # noqa: BLE001 - raised below
                failures.append(failure)

        threads = [
            threading.Thread(target=work, args=(f"{prefix}{number}",)) for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return ROUND * sum(rounds.values())


def send_round(producer: Producer, key: str, first: int) -> None:
    producer.send(numbered(key, first))
    producer.send_many([numbered(key, first + 1), numbered(key, first + 2)])
    producer.end(producer.send_half(numbered(key, first + 3)), Resolution.COMMIT)
    with producer.begin() as transaction:
        transaction.send(numbered(key, first + 4))
        transaction.send(numbered(key, first + 5))
    lost = producer.send_half(numbered(key, -1))
    producer.end(lost, Resolution.ROLLBACK)


async def soak_tasks(name_server: str, is_over: Callable[[int], bool], prefix: str = "a") -> int:
    """Send from `TASKS` tasks until `is_over`; return the number of messages."""
    async with AsyncProducer(name_server, "soak", timeout_s=TIMEOUT_S) as producer:

        async def work(key: str) -> int:
            done = 0
            while not is_over(done):
                await send_round_async(producer, key, done * ROUND)
                done += 1
            return done

        rounds = await asyncio.gather(*(work(f"{prefix}{number}") for number in range(TASKS)))
    return ROUND * sum(rounds)


async def send_round_async(producer: AsyncProducer, key: str, first: int) -> None:
    await producer.send(numbered(key, first))
    await producer.send_many([numbered(key, first + 1), numbered(key, first + 2)])
    await producer.end(await producer.send_half(numbered(key, first + 3)), Resolution.COMMIT)
    async with producer.begin() as transaction:
        await transaction.send(numbered(key, first + 4))
        await transaction.send(numbered(key, first + 5))
    lost = await producer.send_half(numbered(key, -1))
    await producer.end(lost, Resolution.ROLLBACK)


def judge(broker_address: str, expected: int) -> None:
    """Assert that each key's messages are in one queue, in order, each once."""
    found: dict[str, list[int]] = defaultdict(list)
    places: dict[str, set[int]] = defaultdict(set)
    with NativeCalls(broker_address) as calls:
        for queue in list(calls.rows(NativeCode.LIST_QUEUES, ListQueuesHeader(topic=TOPIC))):
            wanted = ReadMessagesHeader(topic=TOPIC, queue_id=queue.queue_id)
            for row in calls.rows(NativeCode.READ_MESSAGES, wanted):
                key, _, number = row.body.decode().partition(":")
                found[key].append(int(number))
                places[key].add(queue.queue_id)
    for key, numbers in found.items():
        assert numbers == list(range(len(numbers))), (key, numbers[:50])
        assert len(places[key]) == 1, (key, places[key])
    assert sum(map(len, found.values())) == expected


def main() -> None:
    """Soak for `--seconds` with threads, then for as long with tasks."""
    parser = argparse.ArgumentParser(description="Share a producer between many.")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for each kind")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="escrowmq-soak-") as folder,
        broker(Path(folder)) as (name_server, address),
    ):
        until_s = time.monotonic() + given.seconds
        sent = soak_threads(name_server, lambda _done: time.monotonic() > until_s)
        judge(address, sent)
        sys.stdout.write(f"{THREADS} threads: {sent} messages, all there and in order\n")
        until_s = time.monotonic() + given.seconds
        more = asyncio.run(soak_tasks(name_server, lambda _done: time.monotonic() > until_s))
        judge(address, sent + more)
        sys.stdout.write(f"{TASKS} tasks: {more} messages, all there and in order\n")


if __name__ == "__main__":
    main()
