"""The cost of tying a message to its savepoint: ``tx.send`` with its mark and without."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from bench.figures.common import alternate, report, scratch
from bench.figures.sdk import TOPIC, our_broker
from escrowmq import Producer, SqlLedger
from tests.ledger.conftest import postgres_server

BLOCKS = 200
MESSAGES = 20
RUNS = 5
MICROSECONDS = 1e6


def marks() -> None:
    """Measure plain blocks on the drivers' own connections, on both databases."""
    with scratch() as folder, our_broker(folder / "data") as address:
        path = folder / "orders.db"
        _compare("sqlite", address, f"sqlite:///{path}", lambda: sqlite3.connect(path))
        with postgres_server() as server:
            url = server.get_uri()
            _compare("postgresql", address, url, lambda: psycopg.connect(url))


def _compare(name: str, address: str, url: str, connect: Callable[[], Any]) -> None:
    SqlLedger(url).create()

    def message_us(*, savepoints: bool) -> float:
        ledger = SqlLedger(url, savepoints=savepoints)
        with Producer(address, group="bench", ledger=ledger) as producer, closing(connect()) as db:
            _sell(producer, db)
            began = time.perf_counter()
            for _ in range(BLOCKS):
                _sell(producer, db)
            return (time.perf_counter() - began) / (BLOCKS * MESSAGES) * MICROSECONDS

    marked, unmarked, _ = alternate(
        lambda _: message_us(savepoints=True), lambda _: message_us(savepoints=False), RUNS
    )
    report(
        f"marks_us_per_message_{name}",
        marked - unmarked,
        "us",
        marked_us=round(marked, 1),
        unmarked_us=round(unmarked, 1),
        messages_per_block=MESSAGES,
        runs=RUNS,
    )


def _sell(producer: Producer, db: Any) -> None:  # noqa: ANN401 - either driver's connection
    with producer.transaction(db) as tx:
        for _ in range(MESSAGES):
            tx.send(TOPIC, b"42")
