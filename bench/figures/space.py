"""Bytes in the log per transaction, and bytes in memory per undecided transaction."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import numpy as np

from bench.figures.common import (
    HOST,
    NOW_MS,
    alternate,
    commit,
    held,
    message,
    opened,
    report,
    scratch,
)
from escrowmq.protocol.message.stored_message import encoded_size
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import Placed
from escrowmq.transaction.states import State
from escrowmq.transaction.table import NewRows


def disk_bytes() -> None:
    """Report the log's bytes per committed transaction over the half message's own bytes."""
    transactions = 1_000
    with scratch() as path:
        store, _ = opened(path / "store", durability="os")
        own = 0
        for number in range(transactions):
            one = message(number, os.urandom(1024))
            own += encoded_size(one, len(HOST))
            commit(store, held(store, (one,), one.unique_key))
            store.sync()
        report("disk_bytes_per_commit_ratio", store.log.end / own, "x", bytes=store.log.end)
        store.log.close()


def undecided() -> None:
    """Report bytes per transaction and the due scan, with 10 million undecided ones."""
    count = 10_000_000
    placed = Placed(queues=[0], sizes=[504], crcs=[1], tags=[2])
    with scratch() as path:
        store, _ = opened(path / "store", durability="os")
        table = store.table
        gc.collect()
        before = resident_bytes()
        for number in range(count):
            table.insert(
                NewRows(
                    first=number,
                    origin=0,
                    state=State.PREPARED,
                    where=Where(number * 600, number * 600, NOW_MS),
                    next_at_ms=[NOW_MS + number % 60_000],
                    transaction_id=f"7F000001000018B4AAC2{number:012X}",
                    placed=placed,
                )
            )
        gc.collect()
        used = resident_bytes() - before
        report("undecided_bytes", used / count, "B", count=count)
        column = np.arange(count, dtype=np.int64) % 60_000 + NOW_MS
        due_at_ms = NOW_MS + 5

        def ours(_run: int) -> float:
            for chunk in table.chunks.values():
                chunk.due_from_ms = 0  # The worst case: no chunk is skipped.
            started = time.perf_counter()
            found = table.due(due_at_ms, 1_000_000)
            took = time.perf_counter() - started
            assert len(found) == np.count_nonzero(column <= due_at_ms)
            return took * 1e3

        def baseline(_run: int) -> float:
            started = time.perf_counter()
            np.flatnonzero(column <= due_at_ms)
            return (time.perf_counter() - started) * 1e3

        mine, base, ratio = alternate(ours, baseline)
        report("undecided_scan_ratio", ratio, "x", ms=mine, baseline_ms=base)
        store.log.close()


def resident_bytes() -> int:
    """Resident memory of this process without shared pages, such as those of libraries."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
