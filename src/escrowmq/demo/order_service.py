"""The order service, a process of its own that may be killed anywhere: it pays orders.

    python -m escrowmq.demo.order_service '{"mode": "plain", …}'

What is in its table is paid; started again, it pays the others, as customers do whose payment did
not go through.  ``plain`` commits the order and then sends its message.  ``transactional`` does
both in one block of the SDK.  Neither knows more about the other's failures than real ones would.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.client.producer import Producer
from escrowmq.demo.shop import ORDERS, Shop, connect
from escrowmq.demo.step_times import OrderStep, StepLog, Stopwatch
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.spark.parent import end_with_parent

PLAIN, TRANSACTIONAL = "plain", "transactional"
GROUP = "orders"
TRIES_MAX = 100


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a service is told when it is started."""

    mode: str
    name_server: str
    group: str = GROUP
    folder: str
    topic: str
    orders: int
    threads: int
    max_duration_s: float
    #: Orders at which it ends itself.
    die_before_commit: list[int] = []
    die_after_commit: list[int] = []
    parent: int


class Till(sqlite3.Connection):
    """A connection in whose COMMIT the service may die.

    SQLite has one writer at a time.  Threads that find it taken would poll; they queue here.
    """

    turn = threading.Lock()
    order = 0
    task: Task
    has_turn = False
    #: Of the order that is being paid.
    watch: Stopwatch

    def take_turn(self, order: int) -> None:
        """Become the writer, for this order."""
        self.turn.acquire()
        self.has_turn = True
        self.order = order

    def give_turn(self) -> None:
        """Let the next one write; harmless if it was not one's turn."""
        if self.has_turn:
            self.has_turn = False
            self.turn.release()

    def commit(self) -> None:
        """Commit, unless the service dies before or after it."""
        die_once(self.task, self.task.die_before_commit, self.order)
        is_transactional = self.task.mode == TRANSACTIONAL
        self.watch.lap(OrderStep.LEDGER_ROW if is_transactional else OrderStep.INSERT)
        super().commit()
        self.watch.lap(OrderStep.COMMIT)
        die_once(self.task, self.task.die_after_commit, self.order)
        self.give_turn()


def death_mark(folder: Path, order: int) -> Path:
    """The file that says that the service has ended itself at this order."""
    return folder / f"died-at-{order}"


def die_once(task: Task, orders: list[int], order: int) -> None:
    """End this process with SIGKILL, if it is to die here and has not done so before."""
    if order in orders:
        mark = death_mark(Path(task.folder), order)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Service:
    """Some threads that pay what is not paid."""

    def __init__(self, task: Task, producer: Producer) -> None:
        self._task = task
        self._producer = producer
        self._shop = Shop(Path(task.folder))
        paid = self._shop.paid()
        self._left = deque(order for order in range(1, task.orders + 1) if order not in paid)
        self._pay = self._pay_plain if task.mode == PLAIN else self._pay_transactional
        self.times = StepLog()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Until all is paid; raises what a thread failed with."""
        threads = [threading.Thread(target=self._work) for _ in range(self._task.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _work(self) -> None:
        db: Any = connect(self._shop.path(ORDERS), Till)
        db.task = self._task
        try:
            while self.failure is None and self._left:
                try:
                    order = self._left.popleft()
                except IndexError:
                    return
                self._pay_at_last(db, order)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.failure = error
        finally:
            # The other threads see the failure once they get their turn.
            db.give_turn()
            db.close()

    def _pay_at_last(self, db: Till, order: int) -> None:
        """Pay; what fails for sure is tried again, and the table says what did not."""
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
        db.take_turn(order)
        db.watch.lap(OrderStep.WAIT)
        self._insert(db, order)
        db.commit()
        # The order is paid, and nobody knows yet.
        for _ in range(TRIES_MAX):
            try:
                self._producer.send(self._task.topic, str(order), key=str(order))
            except EscrowError:
                # No answer: it may have been stored or not.  All that is left is to send it again.
                continue
            db.watch.lap(OrderStep.SEND)
            return

    def _pay_transactional(self, db: Till, order: int) -> None:
        with self._producer.transaction(db) as tx:
            tx.send(self._task.topic, str(order), key=str(order))
            # Before the first write: no other order waits for the broker's disk under the lock.
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
    """Whether the order is in the table."""
    return db.execute("SELECT 1 FROM orders WHERE id = ?", (order,)).fetchone() is not None


def main(given: str) -> None:
    """Do what is asked."""
    task = msgspec.json.decode(given, type=Task)
    end_with_parent(task.parent)
    ledger = Shop(Path(task.folder)).ledger(ORDERS) if task.mode == TRANSACTIONAL else None
    with Producer(
        task.name_server,
        task.group,
        ledger=ledger,
        timeout_s=task.max_duration_s,
        max_duration_s=task.max_duration_s,
    ) as producer:
        service = Service(task, producer)
        service.run()
    service.times.write(Path(task.folder))


if __name__ == "__main__":
    main(sys.argv[1])
