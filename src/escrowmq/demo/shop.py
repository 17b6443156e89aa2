"""The databases of a run: one for the orders, one for each service downstream, each an SQLite file.

Whoever reads does not wait for whoever writes (WAL), and what is committed is on disk.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from escrowmq.client.ledger_table import SqlLedger

ORDERS = "orders"
DOWNSTREAM = ("logistics", "points", "cart")
"""Who hears of a paid order, and does something once."""

_WAIT_S = 30.0

_TABLES = {
    ORDERS: "CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL)",
    "logistics": "CREATE TABLE shipments (order_id INTEGER NOT NULL)",
    "points": "CREATE TABLE points (order_id INTEGER NOT NULL, points INTEGER NOT NULL)",
    "cart": "CREATE TABLE cart (order_id INTEGER PRIMARY KEY, removed INTEGER NOT NULL)",
}
#: What a service does about an order; a message that comes twice under two ids does it twice.
EFFECTS = {
    "logistics": "INSERT INTO shipments VALUES (?)",
    "points": "INSERT INTO points VALUES (?, 10)",
    "cart": "UPDATE cart SET removed = removed + 1 WHERE order_id = ?",
}
#: How often a service has acted, for each order.
_ACTED = {
    "logistics": "SELECT order_id, COUNT(*) FROM shipments GROUP BY order_id",
    "points": "SELECT order_id, SUM(points) / 10 FROM points GROUP BY order_id",
    "cart": "SELECT order_id, removed FROM cart WHERE removed > 0",
}
_CONSUMED = "SELECT COUNT(*) FROM escrowmq_consumed"
PAID = "SELECT COUNT(*) FROM orders"


@dataclass(frozen=True, slots=True)
class Shop:
    """The databases of one run, in one folder."""

    folder: Path

    def path(self, name: str) -> Path:
        """The file of a service."""
        return self.folder / f"{name}.db"

    def url(self, name: str) -> str:
        """The same, as ledgers and audits take it."""
        return f"sqlite:///{self.path(name).absolute()}"

    def ledger(self, name: str) -> SqlLedger:
        """Its ledger table, and that of the messages it has consumed."""
        return SqlLedger(self.url(name))

    def make(self, orders: int) -> None:
        """Make them all, and fill the carts."""
        self.folder.mkdir(parents=True)
        for name, table in _TABLES.items():
            self.ledger(name).create()
            with self.open(name) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(table)
                if name == "cart":
                    carts = [(order,) for order in range(1, orders + 1)]
                    db.executemany("INSERT INTO cart VALUES (?, 0)", carts)
                db.commit()

    @contextmanager
    def open(self, name: str) -> Iterator[sqlite3.Connection]:
        """A connection, closed at the end of the block."""
        with closing(connect(self.path(name))) as db:
            yield db

    def paid(self) -> set[int]:
        """The orders that are paid."""
        with self.open(ORDERS) as db:
            return {row[0] for row in db.execute("SELECT id FROM orders")}

    def wrong_effects(self) -> dict[str, int]:
        """For each service: how many effects are missing or too many, held against the orders."""
        wanted = Counter(self.paid())
        found = {}
        for name in DOWNSTREAM:
            with self.open(name) as db:
                acted = Counter(dict(db.execute(_ACTED[name])))
            found[name] = sum(((wanted - acted) + (acted - wanted)).values())
        return found


class Counts:
    """How far each database is, asked again and again; keeps its connections."""

    def __init__(self, shop: Shop) -> None:
        self._links = {name: connect(shop.path(name)) for name in (ORDERS, *DOWNSTREAM)}

    def paid(self) -> int:
        """Orders in the table of orders."""
        return int(self._links[ORDERS].execute(PAID).fetchone()[0])

    def consumed(self) -> dict[str, int]:
        """By service: messages that it is through with."""
        return {
            name: int(self._links[name].execute(_CONSUMED).fetchone()[0]) for name in DOWNSTREAM
        }

    def close(self) -> None:
        """Hang up."""
        for link in self._links.values():
            link.close()


def connect(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open a file, which need not be there."""
    return sqlite3.connect(path, timeout=_WAIT_S, factory=factory)
