"""How long an audit's fold takes beside counting the same records through the same source.

    python -m bench.pipeline audit [COUNT ...]

Each transaction has one message. Of every 100, 90 are committed, 9 are rolled back and 1 stays
undecided; each decision is an op record of its own (``bench/figures/audit_fill.py``). The fold
reads half and op records and the state table, and finds nothing. The count reads half and op
records with all their columns.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures.common import report, scratch
from bench.figures.cpu import CpuTimes
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.pipeline.audit.records import by_ranges, gather
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import spark_session
from tests.fuzz.served import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = (1_000_000, 10_000_000)
NAMES = {1_000_000: "1m", 10_000_000: "10m"}
WARM_UP = 20_000
RUNS = 3


def main(arguments: list[str]) -> None:
    """Report the figures of each size."""
    counts = [int(argument) for argument in arguments] or list(COUNTS)
    with scratch() as path:
        spark = spark_session(PipelineConfig(master="local[2]"), cache=path / "cache")
        try:
            for count in (WARM_UP, *counts):
                compare(spark, path / str(count), count)
        finally:
            spark.stop()


def compare(spark: SparkSession, path: Path, count: int) -> None:
    """Fold and count in turn; report the best run of each."""
    data = path / "data"
    data.mkdir(parents=True)
    # A process of its own, so that its memory does not count for the measured one.
    command = [sys.executable, "-m", "bench.figures.audit_fill", str(data / "store"), str(count)]
    filled_s = timed(lambda: subprocess.run(command, check=True))  # noqa: S603 -- our own command
    with served(path) as broker:
        took: dict[str, list[float]] = {"fold": [], "scan": []}
        cpu = CpuTimes(broker=broker.process.pid)
        for _ in range(RUNS):
            took["fold"].append(timed(lambda: fold(spark, broker, count)))
            took["scan"].append(timed(lambda: scan(spark, broker, count)))
        spent = cpu.spent()
    fold_s, scan_s = min(took["fold"]), min(took["scan"])
    report(
        f"audit_{NAMES.get(count, count)}_over_scan",
        fold_s / scan_s,
        "x",
        transactions=count,
        transactions_per_s=round(count / fold_s),
        scanned_rows_per_s=round(rows_of(count) / scan_s),
        fold_s=took["fold"],
        scan_s=took["scan"],
        filled_s=filled_s,
        cpu=spent,
    )


def fold(spark: SparkSession, broker: Served, count: int) -> None:
    """Fold half and op records, and compare them with the state table."""
    pins = take_pins([broker.address])
    judged = by_ranges(pins, gather(Views(spark, pins), with_visible=False))
    assert judged.found.count() == 0
    assert judged.counts["transactions"] == judged.counts["table_rows"] == count, judged.counts
    assert judged.counts["undecided"] == -(-count // 100), judged.counts


def scan(spark: SparkSession, broker: Served, count: int) -> None:
    """Count half and op records while reading every column of them."""
    views = Views(spark, take_pins([broker.address]))
    rows = views.halves().count() + views.ops().count()
    assert rows == rows_of(count), rows


def rows_of(count: int) -> int:
    """Number of half records and op records."""
    return 2 * count - -(-count // 100)


def timed(work: Callable[[], object]) -> float:
    """Run `work`; return the seconds it took."""
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 3)
