"""A downstream service in its own process: each message has one effect in its database.

    python -m escrowmq.demo.downstream '{"name": "logistics", …}'

One database transaction holds the effect and the note that the message is consumed, so a message
that is delivered twice has its effect once.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from pathlib import Path

import msgspec

from escrowmq.client.consumer import Consumer
from escrowmq.client.messages import Received
from escrowmq.demo.shop import EFFECTS, Shop, connect
from escrowmq.pipeline.spark.parent import end_with_parent


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The task of a service, given as JSON on its command line."""

    name: str
    name_server: str
    folder: str
    topic: str
    parent: int


def main(given: str) -> None:
    """Consume until SIGTERM."""
    task = msgspec.json.decode(given, type=Task)
    end_with_parent(task.parent)
    # SQLite allows one writer at a time, so more handlers would only wait.
    consumer = Consumer(task.name_server, f"{task.name}-{task.topic}", concurrency=1)
    path = Shop(Path(task.folder)).path(task.name)
    own = threading.local()

    def database() -> sqlite3.Connection:
        """Return this thread's connection."""
        if not hasattr(own, "db"):
            own.db = connect(path)
        found: sqlite3.Connection = own.db
        return found

    @consumer.subscribe(task.topic)
    def act(message: Received) -> None:
        with consumer.transaction(database()) as tx:
            tx.db.execute(EFFECTS[task.name], (int(message.body),))

    consumer.run()


if __name__ == "__main__":
    main(sys.argv[1])
