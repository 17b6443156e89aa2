"""A downstream service in its own process: each message has one effect in its database.

    python -m escrowmq.demo.downstream '{"name": "logistics", …}'

One database transaction holds the effect and the note that the message is consumed, so a message
that is delivered twice has its effect once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.messages.messages import Received
from escrowmq.demo.processes import ChildTask
from escrowmq.demo.shop import EFFECTS, Shop, connect


class ServiceTask(ChildTask, frozen=True, kw_only=True):
    """The task of a downstream service on any database."""

    name: str
    name_server: str
    topic: str

    def consume(
        self,
        open_database: Callable[[], Any],
        act: Callable[[Any, int], None],
        *,
        concurrency: int,
        begin: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Consume until SIGTERM: `act` has the effect of an order, after `begin`.

        Each thread has its own connection.
        """
        consumer = Consumer(self.name_server, f"{self.name}-{self.topic}", concurrency=concurrency)
        own = threading.local()

        @consumer.subscribe(self.topic)
        def handle(message: Received) -> None:
            if not hasattr(own, "db"):
                own.db = open_database()
            begin(own.db)
            with consumer.transaction(own.db) as tx:
                act(tx.db, int(message.body))

        consumer.run()


class DownstreamTask(ServiceTask, frozen=True, kw_only=True):
    """The task of a service on SQLite."""

    folder: str


def main(given: str) -> None:
    """Consume until SIGTERM."""
    task = DownstreamTask.take(given)
    path = Shop(Path(task.folder)).path(task.name)
    # SQLite allows one writer at a time, so more handlers would only wait.
    task.consume(
        lambda: connect(path),
        lambda db, order: db.execute(EFFECTS[task.name], (order,)),
        concurrency=1,
    )


if __name__ == "__main__":
    main(sys.argv[1])
