"""A broker's latency under a steady load, and how two of them compare."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence

from bench.figures.common import report
from tests.fuzz.served import Served

Latencies = dict[str, float]
"""Figures of the load generator."""


def load(broker: Served, seconds: float, rate: float, *, undecided: int = 0) -> Latencies:
    """Run the load generator, which leaves `undecided` of 1,000 transactions; return figures."""
    command = [sys.executable, "-m", "bench.figures.transaction_load", broker.address]
    command += [str(seconds), str(rate), str(undecided)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    told: Latencies = json.loads(done.stdout)
    return told


def report_ratios(
    prefix: str, pairs: Sequence[tuple[Latencies, Latencies]], **details: object
) -> None:
    """Report the medians of beside over alone, for the 50th and the 99th percentile."""
    for name in ("p50", "p99"):
        ratios = [along[f"{name}_ms"] / alone[f"{name}_ms"] for alone, along in pairs]
        report(
            f"{prefix}_{name}_ratio",
            statistics.median(ratios),
            "x",
            alone_ms=[round(alone[f"{name}_ms"], 3) for alone, _ in pairs],
            beside_ms=[round(along[f"{name}_ms"], 3) for _, along in pairs],
            **details,
        )
