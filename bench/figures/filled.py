"""Stores that hold many transactions, filled without a socket."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.figures.common import commit, held, message, opened

_PART = 500


def fill(
    data: Path, transactions: int, *, undecided_of_100: int = 0, body_bytes: int = 300
) -> None:
    """Fill a broker's data directory with transactions of one message each, nearly all committed.

    Their store times are recent, so a broker that serves them deletes none.
    """
    data.mkdir(parents=True, exist_ok=True)
    store, _ = opened(data / "store", durability="os")
    body = os.urandom(body_bytes)
    now_ms = time.time_ns() // 1_000_000 - transactions
    for number in range(transactions):
        one = message(number, body, queue_id=number % 4)
        half_offset = held(store, (one,), one.unique_key, now_ms + number)
        if number % 100 >= undecided_of_100:
            commit(store, half_offset, now_ms + number)
        if number % _PART == 0:
            store.sync()
            if store.checkpoint_due:
                store.checkpoint()
    store.sync()
    store.close()
