"""A new user's first program: one order and its message. Runs in the environment under test."""

from __future__ import annotations

import sqlite3
import sys

from escrowmq import Producer, SqlLedger


def main(name_server: str) -> None:
    """Commit an order with its message."""
    db = sqlite3.connect("shop.db")
    db.execute("CREATE TABLE orders (id integer)")
    ledger = SqlLedger("sqlite:///shop.db")
    ledger.create()
    with Producer(name_server, group="orders", ledger=ledger) as producer:
        with producer.transaction(db) as tx:
            db.execute("INSERT INTO orders VALUES (42)")
            tx.send("order-paid", b"42")
        print(tx.state)


if __name__ == "__main__":
    main(sys.argv[1])
