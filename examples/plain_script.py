"""An order and its message: both, or neither.

python -m examples.plain_script
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from escrowmq import Consumer, Producer, SqlLedger
from examples.where import name_server


class CardDeclined(Exception):
    """The customer cannot pay."""


def main(address: str, path: Path) -> None:
    """Pay for an order, fail to pay for another, and read what was sent."""
    ledger = SqlLedger(f"sqlite:///{path}")
    ledger.create()
    with (
        closing(sqlite3.connect(path)) as db,
        Producer(address, group="orders", ledger=ledger) as producer,
    ):
        db.execute("CREATE TABLE orders (id integer PRIMARY KEY)")

        with producer.transaction(db) as tx:
            db.execute("INSERT INTO orders VALUES (42)")
            tx.send("order-paid", b"42", key="42")

        try:
            with producer.transaction(db) as tx:
                db.execute("INSERT INTO orders VALUES (43)")
                tx.send("order-paid", b"43", key="43")
                raise CardDeclined  # noqa: TRY301 - stands for an exception from a call
        except CardDeclined:
            print("43 was declined: no order, no message")

        print("orders:", [row[0] for row in db.execute("SELECT id FROM orders")])

    with Consumer(address, group="shipping") as consumer:
        for message in consumer.messages("order-paid", timeout_s=1.0):
            print("message:", message.body.decode())


if __name__ == "__main__":
    with name_server() as place, tempfile.TemporaryDirectory() as folder:
        main(place.address, Path(folder) / "shop.db")
