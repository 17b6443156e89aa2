"""The databases of a run, as SQLite files: one for orders, one for each downstream service.

Readers do not wait for the writer (WAL), and committed data is on disk.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from escrowmq.client.ledger.table import SqlLedger

ORDERS = "orders"
DOWNSTREAM = ("logistics", "points", "cart")
"""The services that act once on each paid order."""

_WAIT_S = 30.0

TABLES = {
    ORDERS: "CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL)",
    "logistics": "CREATE TABLE shipments (order_id INTEGER NOT NULL)",
    "points": "CREATE TABLE points (order_id INTEGER NOT NULL, points INTEGER NOT NULL)",
    "cart": "CREATE TABLE cart (order_id INTEGER PRIMARY KEY, removed INTEGER NOT NULL)",
}
#: The effect of an order in a service; two messages with different ids have it twice.
EFFECTS = {
    "logistics": "INSERT INTO shipments VALUES (?)",
    "points": "INSERT INTO points VALUES (?, 10)",
    "cart": "UPDATE cart SET removed = removed + 1 WHERE order_id = ?",
}
#: How often a service has acted on each order.
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
        """Return the file of a service."""
        return self.folder / f"{name}.db"

    def url(self, name: str) -> str:
        """Return the file's URL, as ledgers and audits take it."""
        return f"sqlite:///{self.path(name).absolute()}"

    def ledger(self, name: str) -> SqlLedger:
        """Return its ledger, with the table of the messages that it has consumed."""
        return SqlLedger(self.url(name))

    def make(self, orders: int) -> None:
        """Create all databases, and fill the carts."""
        self.folder.mkdir(parents=True)
        for name, table in TABLES.items():
            self.ledger(name).create()
            with self.open(name) as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute(table)
                if name == "cart":
                    carts = [(order,) for order in range(1, orders + 1)]
                    db.executemany("INSERT INTO cart VALUES (?, 0)", carts)
                db.commit()

    def open(self, name: str) -> closing[sqlite3.Connection]:
        """Open a connection that closes at the end of the block."""
        return closing(connect(self.path(name)))

    def paid(self) -> set[int]:
        """Return the paid orders."""
        with self.open(ORDERS) as db:
            return {row[0] for row in db.execute("SELECT id FROM orders")}

    def wrong_effects(self) -> dict[str, int]:
        """Count for each service the effects that are missing or duplicated, by the paid orders."""
        wanted = Counter(self.paid())
        found = {}
        for name in DOWNSTREAM:
            with self.open(name) as db:
                acted = Counter(dict(db.execute(_ACTED[name])))
            found[name] = sum(((wanted - acted) + (acted - wanted)).values())
        return found


class ShopCounts:
    """Counts the progress of each database, over connections that stay open."""

    def __init__(self, shop: Shop) -> None:
        self._connections = {name: connect(shop.path(name)) for name in (ORDERS, *DOWNSTREAM)}

    def paid(self) -> int:
        """Return the number of paid orders."""
        return int(self._connections[ORDERS].execute(PAID).fetchone()[0])

    def consumed(self) -> dict[str, int]:
        """Return the number of consumed messages by service."""
        return {
            name: int(self._connections[name].execute(_CONSUMED).fetchone()[0])
            for name in DOWNSTREAM
        }

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()


def connect(
    path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """Open a file, and create it if it does not exist."""
    return sqlite3.connect(path, timeout=_WAIT_S, factory=factory)
