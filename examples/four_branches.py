"""One payment in four databases (orders, logistics, credit points, carts), with crashes on the way.

    python -m examples.four_branches

The order service dies twice: once just before a COMMIT, when the broker already holds the message,
and once right after another COMMIT, before it tells the broker. Its ledger table tells which orders
were paid. The points service fails after its COMMIT, so its message is redelivered. In the end all
four databases agree.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

from escrowmq import Consumer, Producer, Received, SqlLedger
from examples.where import Place, name_server

ORDERS = range(1, 11)
DIES_BEFORE_COMMIT = 4
DIES_AFTER_COMMIT = 7
FAILS_AFTER_COMMIT = 2
PATIENCE_S = 300

TABLES = {
    "orders": "CREATE TABLE orders (id integer PRIMARY KEY)",
    "logistics": "CREATE TABLE shipments (order_id integer)",
    "points": "CREATE TABLE points (order_id integer, points integer)",
    "cart": "CREATE TABLE cart (order_id integer)",
}


class MortalConnection(sqlite3.Connection):
    """A connection whose process may die just before or just after a COMMIT."""

    order = 0

    def commit(self) -> None:
        """Commit, or end the process before or after the commit if this order says so."""
        if self.order == DIES_BEFORE_COMMIT:
            os._exit(1)
        super().commit()
        if self.order == DIES_AFTER_COMMIT:
            os._exit(1)


def connect(folder: Path, branch: str) -> MortalConnection:
    """Open a branch's own database."""
    return sqlite3.connect(folder / f"{branch}.db", timeout=30, factory=MortalConnection)


def ledger_of(folder: Path, branch: str) -> SqlLedger:
    """Return the ledger of a branch: each database also has a table of consumed messages."""
    return SqlLedger(f"sqlite:///{folder / f'{branch}.db'}")


# The main branch.


def pay(address: str, folder: Path, first: int) -> None:
    """Pay for the orders from this one on. The process dies at two of them."""
    producer = Producer(address, group="orders", ledger=ledger_of(folder, "orders"))
    with closing(connect(folder, "orders")) as db, producer:
        for order in range(first, ORDERS.stop):
            with producer.transaction(db) as tx:
                db.order = order
                db.execute("INSERT INTO orders VALUES (?)", (order,))
                tx.send("order-paid", str(order), key=order)


# The three branches that consume its messages.


def ship(db: sqlite3.Connection, order: int) -> None:
    """Logistics: add a parcel."""
    db.execute("INSERT INTO shipments VALUES (?)", (order,))


def credit(db: sqlite3.Connection, order: int) -> None:
    """Credit points: add ten for each order."""
    db.execute("INSERT INTO points VALUES (?, 10)", (order,))


def clear(db: sqlite3.Connection, order: int) -> None:
    """Empty the cart."""
    db.execute("DELETE FROM cart WHERE order_id = ?", (order,))


def branch(
    address: str, folder: Path, name: str, effect: Callable[[sqlite3.Connection, int], None]
) -> Consumer:
    """Make a service that applies its effect once for each message."""
    consumer = Consumer(address, group=name)

    @consumer.subscribe("order-paid")
    def handle(message: Received) -> None:
        order = int(message.body)
        with closing(connect(folder, name)) as db, consumer.transaction(db):
            effect(db, order)
        if name == "points" and order == FAILS_AFTER_COMMIT and message.retries == 0:
            raise ConnectionError("the points service has lost its way")

    return consumer


# The result.


def column(folder: Path, branch: str, query: str) -> list[int]:
    """Read one column of a branch's database."""
    with closing(connect(folder, branch)) as db:
        return sorted(row[0] for row in db.execute(query))


def report(folder: Path) -> dict[str, list[int]]:
    """Return, for each branch, the orders that it counts as paid."""
    left = column(folder, "cart", "SELECT order_id FROM cart")
    return {
        "orders": column(folder, "orders", "SELECT id FROM orders"),
        "logistics": column(folder, "logistics", "SELECT order_id FROM shipments"),
        "points": column(folder, "points", "SELECT order_id FROM points"),
        "cart": [order for order in ORDERS if order not in left],
    }


def do_agree(folder: Path) -> bool:
    """Return whether all branches count the same orders as paid."""
    orders, *others = report(folder).values()
    return all(other == orders for other in others)


def prepare(folder: Path) -> None:
    """Create the databases, and fill the carts."""
    for name, table in TABLES.items():
        ledger_of(folder, name).create()
        with closing(connect(folder, name)) as db:
            db.execute(table)
            if name == "cart":
                db.executemany("INSERT INTO cart VALUES (?)", [(order,) for order in ORDERS])
            db.commit()


def main(place: Place, folder: Path) -> None:
    """Run the whole example."""
    prepare(folder)
    first = ORDERS.start
    while True:
        words = [sys.executable, "-m", "examples.four_branches", place.address, str(folder)]
        died = subprocess.run([*words, str(first)], check=False).returncode  # noqa: S603 - ourselves
        if not died:
            break
        first = DIES_AFTER_COMMIT + 1 if first > DIES_BEFORE_COMMIT else DIES_BEFORE_COMMIT + 1
        print("the order service died; it goes on with order", first)
    with ExitStack() as running:
        place.settle_by(ledger_of(folder, "orders"))
        for name, effect in (("logistics", ship), ("points", credit), ("cart", clear)):
            running.enter_context(branch(place.address, folder, name, effect))
        until = time.monotonic() + PATIENCE_S
        while not do_agree(folder) and time.monotonic() < until:
            place.let_time_pass()
    for name, paid in report(folder).items():
        print(f"{name:10} {paid}")
    print("all agree" if do_agree(folder) else "THEY DISAGREE")


if __name__ == "__main__":
    if sys.argv[1:]:
        pay(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
    else:
        with name_server() as here, tempfile.TemporaryDirectory() as made:
            main(here, Path(made))
