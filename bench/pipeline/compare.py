"""How long a round of the half/op comparison takes, beside counting the same records.

    python -m bench.pipeline compare [COUNT]

The store is that of the audit's benchmark (``bench/figures/audit_fill.py``): each transaction has
one message, 90 of 100 are committed, 9 are rolled back and 1 stays undecided. The first round reads
the whole log and the whole state table. Then a tenth is added, and a second round continues from
the first one's checkpoint. The count reads half and op records with all their columns.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures.common import report, scratch
from bench.pipeline.audit import rows_of, scan, timed
from escrowmq.pipeline.compare.rounds import Comparing
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import spark_session
from tests.fuzz.served import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 2_000_000
WARM_UP = 20_000
RUNS = 3
LIMITS = {"compare_over_scan": 6.0, "compare_second_round_over_first": 0.2}


def main(arguments: list[str]) -> None:
    """Report both figures."""
    count = int(arguments[0]) if arguments else COUNT
    with scratch() as path:
        spark = spark_session(PipelineConfig(master="local[2]"), cache=path / "cache")
        try:
            measure(spark, path / "warm-up", WARM_UP)
            first_s, scan_s, second_s = measure(spark, path / "measured", count)
        finally:
            spark.stop()
    for name, numbers, base in (
        ("compare_over_scan", first_s, scan_s),
        ("compare_second_round_over_first", second_s, first_s),
    ):
        report(
            name,
            min(numbers) / min(base),
            "x",
            transactions=count,
            limit=LIMITS[name],
            took_s=numbers,
            base_s=base,
        )


def measure(
    spark: SparkSession, path: Path, count: int
) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds of first rounds, of counts and of second rounds."""
    data, checkpoints = path / "data", path / "checkpoints"
    data.mkdir(parents=True)
    fill(data / "store", count)
    first_s, scan_s, second_s = [], [], []
    with served(path) as broker:
        for _ in range(RUNS):
            shutil.rmtree(checkpoints, ignore_errors=True)
            first_s.append(timed(partial(expect_round, spark, broker, checkpoints, count)))
            scan_s.append(timed(lambda: scan(spark, broker, count)))
    added = count // 10
    fill(data / "store", count + added, count)
    with served(path) as broker:
        for number in range(RUNS):
            again = path / f"checkpoints-{number}"
            shutil.copytree(checkpoints, again)
            second_s.append(timed(partial(expect_round, spark, broker, again, added)))
    return first_s, scan_s, second_s


def fill(store: Path, count: int, begin: int = 0) -> None:
    """Fill a store, in a process of its own, so that its memory does not count."""
    command = [sys.executable, "-m", "bench.figures.audit_fill", str(store), str(count), str(begin)]
    subprocess.run(command, check=True)  # noqa: S603 -- our own command


def expect_round(spark: SparkSession, broker: Served, checkpoints: Path, halves: int) -> None:
    """Run one round; check that it read these half messages and found nothing."""
    comparing = Comparing(spark, str(checkpoints), pipeline="bench")
    summary = comparing.round([broker.address])
    assert summary.differences_held == 0, summary
    assert summary.half_messages == halves, summary
    assert summary.decisions == rows_of(halves) - halves, summary
    assert not summary.is_behind, summary
