"""A downstream service with a PostgreSQL database; otherwise like ``downstream.py``."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from escrowmq.client.consumer import Consumer
from escrowmq.client.messages import Received
from escrowmq.demo.postgres import TimedConnection
from escrowmq.demo.postgres import act as perform
from escrowmq.pipeline.spark.parent import end_with_parent

CONCURRENCY = 4


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a service, given as JSON on its command line."""

    name: str
    name_server: str
    topic: str
    url: str
    slow_ms: int
    #: File that the service writes its lock times to.
    locks: str
    parent: int


def main(given: str) -> None:
    """Consume until SIGTERM, then write the lock times."""
    task = msgspec.json.decode(given, type=Task)
    end_with_parent(task.parent)
    consumer = Consumer(task.name_server, f"{task.name}-{task.topic}", concurrency=CONCURRENCY)
    own = threading.local()

    def database() -> TimedConnection:
        """Return this thread's connection."""
        if not hasattr(own, "db"):
            own.db = TimedConnection.connect(task.url)
            own.db.branch = task.name
        found: TimedConnection = own.db
        return found

    @consumer.subscribe(task.topic)
    def act(message: Received) -> None:
        db = database()
        # The consumer's transaction block writes its own row first.
        db.take()
        with consumer.transaction(db) as tx:
            perform(tx.db, task.name, int(message.body), task.slow_ms)

    consumer.run()
    Path(task.locks).write_bytes(msgspec.json.encode(TimedConnection.held_ms.get(task.name, [])))


if __name__ == "__main__":
    main(sys.argv[1])
