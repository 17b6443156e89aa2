"""Times of the steps of an order, which the order service measures itself.

The service writes the medians when it ends normally, so they cover the orders since its last start.
They are medians because a killed broker keeps a few orders waiting for seconds.
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
    """A step of paying an order, in the sequence of a transactional order."""

    HOLD = "message to the broker, held"
    WAIT = "wait for the database's writer"
    INSERT = "INSERT of the order"
    LEDGER_ROW = "INSERT of the ledger's row"
    COMMIT = "COMMIT"
    SEND = "message to the broker"
    DECIDE = "decision to the broker"


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Median time of each step, in ms, over the measured orders."""

    orders: int = 0
    median_ms: dict[OrderStep, float] = {}

    @property
    def order_ms(self) -> float:
        """Sum of the steps of an order."""
        return sum(self.median_ms.values())


class Stopwatch:
    """Splits the time of one order into steps."""

    def __init__(self) -> None:
        self._last_s = time.perf_counter()
        self.steps_s: defaultdict[OrderStep, float] = defaultdict(float)

    def lap(self, step: OrderStep) -> None:
        """Add the time since the last lap to this step."""
        now_s = time.perf_counter()
        self.steps_s[step] += now_s - self._last_s
        self._last_s = now_s


class StepLog:
    """Collects the steps of all orders that this process has paid, from all threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._orders = 0
        self._steps_s: defaultdict[OrderStep, list[float]] = defaultdict(list)

    def add(self, watch: Stopwatch) -> None:
        """Add a paid order."""
        with self._lock:
            self._orders += 1
            for step, taken_s in watch.steps_s.items():
                self._steps_s[step].append(taken_s)

    def write(self, folder: Path) -> None:
        """Write the medians for the conductor."""
        medians = {step: 1_000 * median(taken_s) for step, taken_s in self._steps_s.items()}
        done = StepTimes(orders=self._orders, median_ms=medians)
        times_file(folder).write_bytes(msgspec.json.encode(done))


def times_file(folder: Path) -> Path:
    """Return the file that the service writes when it ends normally."""
    return folder / "step-times.json"


def read_times(folder: Path) -> StepTimes:
    """Read what the last service measured; it has no steps if no order was left to pay."""
    return msgspec.json.decode(times_file(folder).read_bytes(), type=StepTimes)
