"""The order service: it pays orders in its own process, which may be killed at any point.

    python -m escrowmq.demo.order_service '{"mode": "plain", …}'

An order in its table is paid. After a restart, the service pays the others, like customers who try
a failed payment again. The customer of an order that the service died at before its COMMIT orders
anew instead, under a new number. ``plain`` commits an order and then sends its message, and does so
in the opposite order for every other one. ``transactional`` does both in one block of the SDK. The
service learns no more about a failure than a real one would.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from escrowmq.client.producer.producer import Producer
from escrowmq.demo.processes import ChildTask
from escrowmq.demo.schedule import sends_first
from escrowmq.demo.shop import ORDERS, Shop, connect
from escrowmq.demo.step_times import OrderStep, StepLog, Stopwatch
from escrowmq.model.errors import EscrowError

PLAIN, TRANSACTIONAL = "plain", "transactional"
GROUP = "orders"
TRIES_MAX = 100


class OrderServiceTask(ChildTask, frozen=True, kw_only=True):
    """The task of the service."""

    mode: str
    name_server: str
    group: str = GROUP
    folder: str
    topic: str
    orders: int
    threads: int
    max_duration_s: float
    #: Orders at which the service kills itself.
    die_before_commit: Sequence[int] = ()
    die_after_commit: Sequence[int] = ()


class Till(sqlite3.Connection):
    """A connection that may kill the service before or after a COMMIT.

    SQLite allows one writer at a time. Its waiting threads would poll, so they queue here instead.
    """

    turn = threading.Lock()
    order = 0
    task: OrderServiceTask
    has_turn = False
    #: Stopwatch of the order that is being paid.
    watch: Stopwatch

    def take_turn(self, order: int) -> None:
        """Wait for the writer lock and take it for this order."""
        self.turn.acquire()
        self.has_turn = True
        self.order = order

    def give_turn(self) -> None:
        """Release the writer lock; do nothing if this connection does not hold it."""
        if self.has_turn:
            self.has_turn = False
            self.turn.release()

    def commit(self) -> None:
        """Commit; kill the service before or after that if the task says so."""
        die_once(self.task, self.task.die_before_commit, self.order)
        is_transactional = self.task.mode == TRANSACTIONAL
        self.watch.lap(OrderStep.LEDGER_ROW if is_transactional else OrderStep.INSERT)
        super().commit()
        self.watch.lap(OrderStep.COMMIT)
        die_once(self.task, self.task.die_after_commit, self.order)
        self.give_turn()


def death_mark(folder: Path, order: int) -> Path:
    """Return the file that marks that the service has killed itself at this order."""
    return folder / f"died-at-{order}"


def death_mark_of(task: OrderServiceTask, order: int) -> Path:
    """Return the mark of this task's service."""
    return death_mark(Path(task.folder), order)


def die_once(task: OrderServiceTask, orders: Sequence[int], order: int) -> None:
    """Kill this process with SIGKILL if it is to die at this order and has not done so before."""
    if order in orders:
        mark = death_mark_of(task, order)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def numbers_of(task: OrderServiceTask) -> Iterator[int]:
    """Yield the numbers of all orders. Those that were ordered anew are above the others."""
    given_up = [
        order for order in sorted(task.die_before_commit) if death_mark_of(task, order).exists()
    ]
    yield from (order for order in range(1, task.orders + 1) if order not in given_up)
    yield from range(task.orders + 1, task.orders + 1 + len(given_up))


class OrderService:
    """Threads that pay the unpaid orders."""

    def __init__(self, task: OrderServiceTask, producer: Producer) -> None:
        self._task = task
        self._producer = producer
        self._shop = Shop(Path(task.folder))
        paid = self._shop.paid()
        self._left = deque(order for order in numbers_of(task) if order not in paid)
        self._pay = self._pay_plain if task.mode == PLAIN else self._pay_transactional
        self.times = StepLog()

    def run(self) -> None:
        """Run until all orders are paid; raise the error that a thread failed with."""
        with ThreadPoolExecutor(self._task.threads) as threads:
            for done in [threads.submit(self._work) for _ in range(self._task.threads)]:
                done.result()

    def _work(self) -> None:
        db: Any = connect(self._shop.path(ORDERS), Till)
        db.task = self._task
        try:
            while self._left:
                try:
                    order = self._left.popleft()
                except IndexError:
                    return
                self._pay_at_last(db, order)
        except BaseException:
            # The other threads stop, too.
            self._left.clear()
            raise
        finally:
            # Other threads go on only after they get the writer lock.
            db.give_turn()
            db.close()

    def _pay_at_last(self, db: Till, order: int) -> None:
        """Pay an order; after an error, retry unless the table shows that it is paid."""
        for _ in range(TRIES_MAX):
            db.watch = Stopwatch()
            try:
                self._pay(db, order)
            except EscrowError:
                db.rollback()
                db.give_turn()
                if is_paid(db, order):
                    return
            else:
                self.times.add(db.watch)
                return
        raise TimeoutError(f"order {order} could not be paid")

    def _pay_plain(self, db: Till, order: int) -> None:
        if sends_first(order):
            # Other services know of the order, but it is not paid yet.
            self._send(db, order)
        db.take_turn(order)
        db.watch.lap(OrderStep.WAIT)
        self._insert(db, order)
        db.commit()
        if not sends_first(order):
            # The order is paid, but no other service knows yet.
            self._send(db, order)

    def _send(self, db: Till, order: int) -> None:
        for _ in range(TRIES_MAX):
            try:
                self._producer.send(self._task.topic, str(order), key=str(order))
            except EscrowError:
                # Without an answer, the message may or may not be stored; it must be sent again.
                continue
            db.watch.lap(OrderStep.SEND)
            return

    def _pay_transactional(self, db: Till, order: int) -> None:
        with self._producer.transaction(db) as tx:
            tx.send(self._task.topic, str(order), key=str(order))
            # Hold before the first write, so that the writer lock does not span the broker's flush.
            tx.hold()
            db.watch.lap(OrderStep.HOLD)
            db.take_turn(order)
            db.watch.lap(OrderStep.WAIT)
            self._insert(db, order)
        db.watch.lap(OrderStep.DECIDE)

    def _insert(self, db: Till, order: int) -> None:
        db.execute("INSERT INTO orders VALUES (?, 1)", (order,))
        db.watch.lap(OrderStep.INSERT)


def is_paid(db: sqlite3.Connection, order: int) -> bool:
    """Return whether the order is in the table."""
    return db.execute("SELECT 1 FROM orders WHERE id = ?", (order,)).fetchone() is not None


def main(given: str) -> None:
    """Run the service until all orders are paid, and write the step times."""
    task = OrderServiceTask.take(given)
    ledger = Shop(Path(task.folder)).ledger(ORDERS) if task.mode == TRANSACTIONAL else None
    with Producer(
        task.name_server,
        task.group,
        ledger=ledger,
        timeout_s=task.max_duration_s,
        max_duration_s=task.max_duration_s,
    ) as producer:
        service = OrderService(task, producer)
        service.run()
    service.times.write(Path(task.folder))


if __name__ == "__main__":
    main(sys.argv[1])
