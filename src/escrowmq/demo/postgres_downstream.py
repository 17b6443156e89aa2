"""A downstream service with a PostgreSQL database; otherwise like ``downstream.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from escrowmq.demo.downstream import ServiceTask
from escrowmq.demo.postgres import TimedConnection, act

CONCURRENCY = 4


class PostgresDownstreamTask(ServiceTask, frozen=True, kw_only=True):
    """The task of a service on PostgreSQL."""

    url: str
    slow_ms: int
    #: File that the service writes its lock times to.
    locks: str


def main(given: str) -> None:
    """Consume until SIGTERM, then write the lock times."""
    task = PostgresDownstreamTask.take(given)
    task.consume(
        lambda: TimedConnection.open(task.url, task.name),
        lambda db, order: act(db, task.name, order, task.slow_ms),
        concurrency=CONCURRENCY,
        # The consumer's transaction block writes its own row first.
        begin=TimedConnection.take,
    )
    Path(task.locks).write_bytes(msgspec.json.encode(TimedConnection.held_ms.get(task.name, [])))


if __name__ == "__main__":
    main(sys.argv[1])
