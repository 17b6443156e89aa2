"""Where the time of an order goes: the order service measures its own steps.

The service writes the medians when it ends by itself: they cover the orders since its last start.
A median, because a broker that is killed meanwhile keeps a few orders waiting for seconds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from enum import StrEnum
from pathlib import Path
from statistics import median
from threading import Lock

import msgspec


class OrderStep(StrEnum):
    """A step of paying an order, in the order of a transactional one."""

    HOLD = "message to the broker, held"
    WAIT = "wait for the database's writer"
    INSERT = "INSERT of the order"
    LEDGER_ROW = "INSERT of the ledger's row"
    COMMIT = "COMMIT"
    SEND = "message to the broker"
    DECIDE = "decision to the broker"


#: SQLite has one writer: while one order is in these steps, no other order can be.
WRITER_STEPS = (OrderStep.INSERT, OrderStep.LEDGER_ROW, OrderStep.COMMIT)


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The median time of each step, in ms, over some orders."""

    orders: int = 0
    median_ms: dict[OrderStep, float] = {}

    @property
    def order_ms(self) -> float:
        """The steps of an order together."""
        return sum(self.median_ms.values())

    @property
    def writer_ms(self) -> float:
        """How long an order keeps the database's only writer."""
        return sum(self.median_ms.get(step, 0.0) for step in WRITER_STEPS)


class Stopwatch:
    """Splits the time of one order into steps."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()
        self.steps_s: defaultdict[OrderStep, float] = defaultdict(float)

    def lap(self, step: OrderStep) -> None:
        """The time since the last lap went into this step."""
        now_s = time.perf_counter()
        self.steps_s[step] += now_s - self._last_s
        self._last_s = now_s


class StepLog:
    """The steps of all orders that this process has paid, from all of its threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._orders = 0
        self._steps_s: defaultdict[OrderStep, list[float]] = defaultdict(list)

    def add(self, watch: Stopwatch) -> None:
        """Add an order that is paid."""
        with self._lock:
            self._orders += 1
            for step, taken_s in watch.steps_s.items():
                self._steps_s[step].append(taken_s)

    def write(self, folder: Path) -> None:
        """Leave the medians for the conductor."""
        medians = {step: 1_000 * median(taken_s) for step, taken_s in self._steps_s.items()}
        done = StepTimes(orders=self._orders, median_ms=medians)
        times_file(folder).write_bytes(msgspec.json.encode(done))


def times_file(folder: Path) -> Path:
    """The file that the service leaves when it ends by itself."""
    return folder / "step-times.json"


def read_times(folder: Path) -> StepTimes:
    """Read what the last service measured; empty if it had no order left to pay."""
    return msgspec.json.decode(times_file(folder).read_bytes(), type=StepTimes)
