"""The comparison with XA, in its own process: the same orders, four databases, no kills.

    python -m escrowmq.demo.xa '{"name_server": "127.0.0.1:9876", …}'

``ours`` writes the order and its message in one block; messages update the other three branches.
``xa`` runs one global transaction over all four branches: PREPARE TRANSACTION, a decision that the
coordinator flushes to its own log, and COMMIT PREPARED. Both run one after the other on the same
PostgreSQL server, with the same number of threads. Only ``max_prepared_transactions`` differs from
the server's defaults.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.producer.producer import Producer
from escrowmq.demo import postgres_downstream
from escrowmq.demo.figures import MethodFigures, OnPostgres
from escrowmq.demo.postgres import SLOW_MS, TimedConnection, act, acted, databases, server
from escrowmq.demo.processes import ChildTask, Processes, demo_failed
from escrowmq.demo.shop import DOWNSTREAM, ORDERS

THROUGH_S_MAX = 300.0
SLOW_PART = 4
"""The runs with a slow service pay one in this many orders."""

_LOOK_S = 0.05
_GROUP = "orders-on-postgres"

Pay = Callable[[dict[str, TimedConnection], int], None]


class XaTask(ChildTask, frozen=True, kw_only=True):
    """The task of the comparison."""

    name_server: str
    topic: str
    slow_topic: str
    folder: str
    orders: int
    #: How much longer the slow service takes.
    slow_ms: int = 0
    threads: int
    result: str


def main(given: str) -> None:
    """Run both methods, and write the figures to the task's file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    task = XaTask.take(given)
    few = msgspec.structs.replace(
        task, orders=task.orders // SLOW_PART, slow_ms=SLOW_MS, topic=task.slow_topic
    )
    with server() as url:
        done = OnPostgres(
            ours=run_ours(task, databases(url, "ours", task.orders)),
            xa=run_xa(task, databases(url, "xa", task.orders)),
            slow_ms=SLOW_MS,
            slow_ours=run_ours(few, databases(url, "slow_ours", few.orders)),
            slow_xa=run_xa(few, databases(url, "slow_xa", few.orders)),
        )
    Path(task.result).write_bytes(msgspec.json.encode(done))


def run_ours(task: XaTask, urls: Mapping[str, str]) -> MethodFigures:
    """Pay by messages: commit the order in its database; three services follow its message."""
    producer = Producer(task.name_server, _GROUP, ledger=SqlLedger(urls[ORDERS]))

    def pay(connections: dict[str, TimedConnection], order: int) -> None:
        db = connections[ORDERS]
        with producer.transaction(db) as tx:
            tx.send(task.topic, str(order), key=str(order))
            tx.hold()
            db.take()
            act(db, ORDERS, order, task.slow_ms)

    with services(task, urls) as notes, producer:
        locks, took_s, since = work(task, {ORDERS: urls[ORDERS]}, pay)
        until = since + THROUGH_S_MAX
        while set(acted(urls).values()) != {task.orders} and time.perf_counter() < until:
            time.sleep(_LOOK_S)
        agreed_s = time.perf_counter() - since
    locks |= {name: msgspec.json.decode(note.read_bytes()) for name, note in notes.items()}
    return measured(task, urls, took_s=took_s, agreed_s=agreed_s, locks=locks)


@contextmanager
def services(task: XaTask, urls: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Run the downstream services; after they end, the yielded files hold their lock times."""
    processes = Processes(Path(task.folder))
    notes = {name: Path(task.folder) / f"locks-{name}-{task.topic}.json" for name in DOWNSTREAM}
    try:
        for name in DOWNSTREAM:
            own = postgres_downstream.PostgresDownstreamTask(
                name=name,
                name_server=task.name_server,
                topic=task.topic,
                url=urls[name],
                slow_ms=task.slow_ms,
                locks=str(notes[name]),
            )
            processes.start_with(f"postgres-{name}", own)
        yield notes
    finally:
        processes.stop_all()
    for name, note in notes.items():
        if not note.exists():
            raise demo_failed(f"{name} ended", processes.log(f"postgres-{name}"))


def run_xa(task: XaTask, urls: Mapping[str, str]) -> MethodFigures:
    """Pay each order by one global transaction over all four branches."""
    log = Path(task.folder) / "coordinator.log"

    def pay(connections: dict[str, TimedConnection], order: int) -> None:
        for name, connection in connections.items():
            connection.take()
            connection.execute("BEGIN")
            act(connection, name, order, task.slow_ms)
        for name, connection in connections.items():
            connection.execute(f"PREPARE TRANSACTION '{order}-{name}'".encode())
        decide(log, order)
        for name, connection in connections.items():
            connection.execute(f"COMMIT PREPARED '{order}-{name}'".encode())
            connection.let_go()

    locks, took_s, _ = work(task, urls, pay, autocommit=True)
    return measured(task, urls, took_s=took_s, agreed_s=took_s, locks=locks)


_turn = threading.Lock()


def decide(log: Path, order: int) -> None:
    """Make the coordinator's decision durable: a crash after it must end in COMMIT everywhere."""
    with _turn, log.open("ab") as file:
        file.write(f"commit {order}\n".encode())
        file.flush()
        os.fdatasync(file.fileno())


def work(
    task: XaTask, urls: Mapping[str, str], pay: Pay, *, autocommit: bool = False
) -> tuple[dict[str, list[float]], float, float]:
    """Pay all orders in threads; return lock times by branch, seconds taken, and the start time."""
    TimedConnection.held_ms.clear()
    numbers = iter(range(1, task.orders + 1))
    turn = threading.Lock()

    def next_order() -> int:
        with turn:
            return next(numbers, 0)

    def labour() -> None:
        with ExitStack() as stack:
            connections: dict[str, Any] = {
                name: stack.enter_context(TimedConnection.open(url, name, autocommit=autocommit))
                for name, url in urls.items()
            }
            while order := next_order():
                pay(connections, order)

    since = time.perf_counter()
    with ThreadPoolExecutor(task.threads) as pool:
        for done in [pool.submit(labour) for _ in range(task.threads)]:
            done.result()
    return dict(TimedConnection.held_ms), time.perf_counter() - since, since


def measured(
    task: XaTask,
    urls: Mapping[str, str],
    *,
    took_s: float,
    agreed_s: float,
    locks: Mapping[str, list[float]],
) -> MethodFigures:
    """Compute the figures of one method."""
    others = [ms for name in DOWNSTREAM for ms in locks[name]]
    return MethodFigures(
        orders=task.orders,
        took_s=took_s,
        agreed_s=agreed_s,
        orders_lock_ms_median=statistics.median(locks[ORDERS]),
        orders_lock_ms_p99=statistics.quantiles(locks[ORDERS], n=100)[98],
        others_lock_ms_median=statistics.median(others),
        lock_ms_an_order=(sum(locks[ORDERS]) + sum(others)) / task.orders,
        do_agree=set(acted(urls).values()) == {task.orders},
    )


if __name__ == "__main__":
    main(sys.argv[1])
