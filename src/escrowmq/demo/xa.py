"""The comparison with XA, a process of its own: the same orders, four databases, no kills.

    python -m escrowmq.demo.xa '{"name_server": "127.0.0.1:9876", …}'

``ours``: the order and its message in one block, the other three branches by messages.  ``xa``: one
global transaction over all four branches, by PREPARE TRANSACTION, a decision that the coordinator
flushes to its own log, and COMMIT PREPARED.  Both on the same PostgreSQL server, whose settings are
its defaults, one after the other, with as many threads.
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

from escrowmq.client.ledger_table import SqlLedger
from escrowmq.client.producer import Producer
from escrowmq.demo import postgres_downstream
from escrowmq.demo.figures import Compared, OnPostgres
from escrowmq.demo.postgres import ACTS, BRANCHES, PAY, TimedConnection, acted, databases, server
from escrowmq.demo.processes import Processes, demo_failed
from escrowmq.demo.shop import DOWNSTREAM, ORDERS
from escrowmq.pipeline.parent import end_with_parent

THROUGH_S_MAX = 300.0
_LOOK_S = 0.05
_GROUP = "orders-on-postgres"

Pay = Callable[[dict[str, TimedConnection], int], None]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What it is told when it is started."""

    name_server: str
    topic: str
    folder: str
    orders: int
    threads: int
    result: str
    parent: int


def main(given: str) -> None:
    """Run both, and write down what was measured."""
    task = msgspec.json.decode(given, type=Task)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end_with_parent(task.parent)
    with server() as url:
        ours = run_ours(task, databases(url, "ours", task.orders))
        xa = run_xa(task, databases(url, "xa", task.orders))
    Path(task.result).write_bytes(msgspec.json.encode(OnPostgres(ours=ours, xa=xa)))


def run_ours(task: Task, urls: Mapping[str, str]) -> Compared:
    """The order in its database, its message held until COMMIT; three services follow."""
    producer = Producer(task.name_server, _GROUP, ledger=SqlLedger(urls[ORDERS]))

    def pay(links: dict[str, TimedConnection], order: int) -> None:
        db = links[ORDERS]
        with producer.transaction(db) as tx:
            db.take()
            db.execute(PAY, (order,))
            tx.send(task.topic, str(order), key=str(order))

    with services(task, urls) as locks, producer:
        held_ms, took_s, since = work(task, {ORDERS: urls[ORDERS]}, pay)
        until = since + THROUGH_S_MAX
        while set(acted(urls).values()) != {task.orders} and time.perf_counter() < until:
            time.sleep(_LOOK_S)
        agreed_s = time.perf_counter() - since
    downstream = [ms for path in locks for ms in msgspec.json.decode(path.read_bytes())]
    return measured(
        task,
        urls,
        took_s=took_s,
        agreed_s=agreed_s,
        orders_ms=held_ms,
        downstream_ms=downstream,
    )


@contextmanager
def services(task: Task, urls: Mapping[str, str]) -> Iterator[list[Path]]:
    """The services downstream; when they have ended, what they noted about locks is in files."""
    processes = Processes(Path(task.folder))
    notes = []
    try:
        for name in DOWNSTREAM:
            notes.append(Path(task.folder) / f"locks-{name}.json")
            own = postgres_downstream.Task(
                name=name,
                name_server=task.name_server,
                topic=task.topic,
                url=urls[name],
                locks=str(notes[-1]),
                parent=os.getpid(),
            )
            module = "escrowmq.demo.postgres_downstream"
            processes.start_with(f"postgres-{name}", module, own)
        yield notes
    finally:
        processes.stop_all()
    for name, note in zip(DOWNSTREAM, notes, strict=True):
        if not note.exists():
            raise demo_failed(f"{name} ended", processes.log(f"postgres-{name}"))


def run_xa(task: Task, urls: Mapping[str, str]) -> Compared:
    """One global transaction over all four branches for each order."""
    log = Path(task.folder) / "coordinator.log"

    def pay(links: dict[str, TimedConnection], order: int) -> None:
        for name, link in links.items():
            link.take()
            link.execute("BEGIN")
            link.execute((PAY if name == ORDERS else ACTS[name]).encode(), (order,))
        for name, link in links.items():
            link.execute(f"PREPARE TRANSACTION '{order}-{name}'".encode())
        decide(log, order)
        for name, link in links.items():
            link.execute(f"COMMIT PREPARED '{order}-{name}'".encode())
            link.let_go()

    held_ms, took_s, _ = work(task, urls, pay, autocommit=True)
    # Four for each order, in no order: the branches are alike.
    return measured(task, urls, took_s=took_s, agreed_s=took_s, orders_ms=held_ms, downstream_ms=[])


_turn = threading.Lock()


def decide(log: Path, order: int) -> None:
    """Make the coordinator's decision durable: a crash after it must end in COMMIT everywhere."""
    with _turn, log.open("ab") as file:
        file.write(f"commit {order}\n".encode())
        file.flush()
        os.fdatasync(file.fileno())


def work(
    task: Task, urls: Mapping[str, str], pay: Pay, *, autocommit: bool = False
) -> tuple[list[float], float, float]:
    """Pay all orders in threads; lock times, seconds, and when it began."""
    TimedConnection.held_ms.clear()
    numbers = iter(range(1, task.orders + 1))
    turn = threading.Lock()

    def next_order() -> int:
        with turn:
            return next(numbers, 0)

    def labour() -> None:
        with ExitStack() as open_links:
            links: dict[str, Any] = {
                name: open_links.enter_context(TimedConnection.connect(url, autocommit=autocommit))
                for name, url in urls.items()
            }
            while order := next_order():
                pay(links, order)

    since = time.perf_counter()
    with ThreadPoolExecutor(task.threads) as pool:
        for done in [pool.submit(labour) for _ in range(task.threads)]:
            done.result()
    return list(TimedConnection.held_ms), time.perf_counter() - since, since


def measured(
    task: Task,
    urls: Mapping[str, str],
    *,
    took_s: float,
    agreed_s: float,
    orders_ms: list[float],
    downstream_ms: list[float],
) -> Compared:
    """The figures of one way."""
    all_ms = [*orders_ms, *downstream_ms]
    return Compared(
        orders=task.orders,
        took_s=took_s,
        agreed_s=agreed_s,
        lock_ms_median=statistics.median(all_ms),
        lock_ms_p99=statistics.quantiles(all_ms, n=100)[98],
        lock_ms_an_order=sum(all_ms) / task.orders,
        do_agree=set(acted(urls).values()) == {task.orders} and len(urls) == len(BRANCHES),
    )


if __name__ == "__main__":
    main(sys.argv[1])
