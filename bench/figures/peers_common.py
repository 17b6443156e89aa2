"""What the figures about two brokers share: how much is measured, and how a pair is told."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.interop.load import Run, Shape

THREADS = [1, 8, 64]
BODIES = [300, 1024]
RUNS = 3
SECONDS = 10.0
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    threads: Sequence[int]
    body_bytes: Sequence[int]
    runs: int
    measure_ms: int

    @property
    def warm_up_ms(self) -> int:
        """Compilers need a while, however short the run."""
        return min(4_000, self.measure_ms)

    def shapes(self) -> list[Shape]:
        """All of them, the widest first: a driver that is warm by then is warm for the others."""
        return [
            Shape(threads=threads, body_bytes=body_bytes)
            for body_bytes in self.body_bytes
            for threads in sorted(self.threads, reverse=True)
        ]


def median(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    """Of one broker's runs."""
    return round(statistics.median(of(one) for one in runs), 3)


def faults(runs: Sequence[Run]) -> dict[str, int]:
    """What must be zero."""
    return {
        "failed": sum(one.figures.failed for one in runs),
        "doubled": sum(one.figures.doubled for one in runs),
        "not_received": sum(one.figures.not_received for one in runs),
    }
