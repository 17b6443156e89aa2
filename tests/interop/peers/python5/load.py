"""Load of concurrent transactions through RocketMQ's own 5.x Python client, and its cost.

It runs in its own environment, without our code. The last line of output is one JSON object.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from itertools import count

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)


class Commit(TransactionChecker):  # type: ignore[misc]
    """Answers every back-check with commit."""

    def check(self, message: Message) -> TransactionResolution:  # noqa: ARG002 - nothing to ask
        """Answer commit."""
        return TransactionResolution.COMMIT


def run(producer: Producer, topic: str, transactions: int, threads: int, body: bytes) -> int:
    """Send and commit; return how many failed."""
    numbers = count()
    failed: list[str] = []

    def work() -> None:
        while (number := next(numbers)) < transactions:
            message = Message()
            message.topic = topic
            message.body = body
            message.keys = f"order-{number}"
            try:
                transaction = producer.begin_transaction()
                producer.send(message, transaction)
                transaction.commit()
            except Exception as error:  # noqa: BLE001 - counted
                failed.append(repr(error))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        sys.stderr.write(f"{failed[0]}\n")
    return len(failed)


def main() -> None:
    """Warm up, then measure."""
    endpoints, topic, transactions, in_flight, body_bytes = sys.argv[1:]
    config = ClientConfiguration(endpoints, Credentials())
    producer = Producer(config, (topic,), checker=Commit())
    producer.startup()
    body = b"x" * int(body_bytes)
    run(producer, topic, int(transactions) // 5, int(in_flight), body)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    failed = run(producer, topic, int(transactions), int(in_flight), body)
    told = {
        "transactions": int(transactions),
        "failed": failed,
        "cpu_s": time.process_time() - cpu_s,
        "wall_s": time.perf_counter() - wall_s,
    }
    producer.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
