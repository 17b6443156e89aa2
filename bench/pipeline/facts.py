"""The cost of listing facts for the broker: CPU time and the longest page, for each list.

    python -m bench.pipeline facts [TRANSACTIONS]

The store is filled without sockets. One client asks for the pages, as a task would.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.figures.common import report, scratch
from bench.figures.filled import fill
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.headers import ListTransactionsHeader, LogRangeHeader, NativeHeader
from escrowmq.protocol.native.requests import NativeCode
from tests.fuzz.served import Served, served

TRANSACTIONS = 1_000_000
#: The first run is a warm-up.
RUNS = 3

_ALL = "prepared,committed,rolled_back,parked"
LISTS: dict[str, tuple[NativeCode, NativeHeader]] = {
    "transactions": (NativeCode.LIST_TRANSACTIONS, ListTransactionsHeader(states=_ALL)),
    "transactions_with_ids": (
        NativeCode.LIST_TRANSACTIONS,
        ListTransactionsHeader(states=_ALL, with_ids=True),
    ),
    "halves": (NativeCode.LIST_HALVES, LogRangeHeader()),
    "ops": (NativeCode.LIST_OPS, LogRangeHeader()),
    "checks": (NativeCode.LIST_CHECKS, LogRangeHeader()),
    "events": (NativeCode.LIST_EVENTS, LogRangeHeader()),
}


@dataclass(frozen=True, slots=True)
class Listed:
    """Measurements of one list that was read to its end."""

    rows: int
    pages: int
    took_s: float
    broker_ms: int
    longest_ms: float


def main(arguments: list[str]) -> None:
    """Report the broker's CPU microseconds per row."""
    transactions = int(arguments[0]) if arguments else TRANSACTIONS
    with scratch() as path:
        fill(path / "data", transactions, undecided_of_100=1)
        with served(path) as broker:
            for name in LISTS:
                _report(name, broker, transactions)


def _report(name: str, broker: Served, transactions: int) -> None:
    runs = [read(broker, *LISTS[name]) for _ in range(RUNS)]
    best = min(runs[1:], key=lambda run: run.broker_ms)
    # A list without rows, such as checks here, is reported per transaction.
    rows = best.rows or transactions
    report(
        f"list_{name}_broker_us",
        best.broker_ms * 1e3 / rows,
        "us/row",
        rows=best.rows,
        rows_per_s=round(rows / best.took_s),
        pages=best.pages,
        longest_page_ms=round(best.longest_ms, 2),
    )


def read(broker: Served, code: NativeCode, header: NativeHeader) -> Listed:
    """Read all pages of a list."""
    rows = pages = 0
    longest_s = 0.0
    with NativeCalls(broker.address) as calls:
        cpu_ms, started = broker.usage().cpu_ms, time.perf_counter()
        asked = started
        for answer in calls.arrow_pages(code, header):
            now = time.perf_counter()
            longest_s = max(longest_s, now - asked)
            asked = now
            rows += answer.batch.num_rows
            pages += 1
        took_s = time.perf_counter() - started
    return Listed(rows, pages, took_s, broker.usage().cpu_ms - cpu_ms, longest_s * 1e3)
