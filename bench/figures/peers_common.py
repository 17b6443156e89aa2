"""Shared parts of the figures about two brokers: the measuring plan and its summaries."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.interop.load import Run, Shape

THREADS = [1, 8, 64]
BODIES = [300, 1024]
RUNS = 3
#: What 5.x clients are measured with; each pair of runs takes a minute.
GRPC_THREADS = [64]
GRPC_BODIES = [300]
GRPC_RUNS = 5
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
        """Warm-up time: just-in-time compilers need it, but it is at most as long as the run."""
        return min(4_000, self.measure_ms)

    def shapes(self) -> list[Shape]:
        """All shapes; the one with the most threads comes first and warms up the driver."""
        return [
            Shape(threads=threads, body_bytes=body_bytes)
            for body_bytes in self.body_bytes
            for threads in sorted(self.threads, reverse=True)
        ]


def median(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    """Median of a value over one broker's runs."""
    return round(statistics.median(of(one) for one in runs), 3)


def faults(runs: Sequence[Run]) -> dict[str, int]:
    """Counts that must be zero."""
    return {
        "failed": sum(one.figures.failed for one in runs),
        "doubled": sum(one.figures.doubled for one in runs),
        "not_received": sum(one.figures.not_received for one in runs),
    }
