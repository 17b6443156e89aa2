"""How fast undecided transactions are settled from a PostgreSQL ledger, and by asking producers.

    python -m bench.pipeline settle [COUNT ...]

Broker, PostgreSQL, Spark and the producer share this machine. Half of the transactions have a row
in the ledger. The others have none and are past their deadline, so the round fences them. Each
figure comes with the CPU time by process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures.common import report, scratch
from bench.figures.cpu import CpuTimes
from bench.figures.settle_fill import answering, filled, make_ledger, postgres
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.settle.settling import Settling, settle_round
from escrowmq.pipeline.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.settle.round_summary import RoundSummary

BY_PIPELINE = "transaction.checked_by=pipeline"
COUNTS = (10_000, 100_000, 1_000_000)
WARM_UP = 2_000
SMALL = 100
PRODUCED = 10_000
#: How many back-checks one client can be sent at a time.
ASKS_MAX = 4_000
NAMES = {10_000: "10k", 100_000: "100k", 1_000_000: "1m"}


def main(arguments: list[str]) -> None:
    """Report the figures of each size, and how the sizes compare."""
    counts = [int(argument) for argument in arguments] or list(COUNTS)
    with scratch() as path, postgres(path) as url:
        spark = spark_session(PipelineConfig(), cache=path / "cache")
        for number in range(3):
            settle(spark, path / f"warm-{number}", url, WARM_UP)
        small(spark, path / "small")
        took = {count: ledger(spark, path / str(count), url, count) for count in counts}
        if not arguments:
            report("settle_1m_over_100k", took[1_000_000] / took[100_000], "ratio")
            producers(spark, path / "producers")
        spark.stop()


def ledger(spark: SparkSession, path: Path, url: str, count: int) -> float:
    """Settle `count` transactions from a ledger; return the seconds it took."""
    took, facts = settle(spark, path, url, count)
    name = NAMES.get(count, str(count))
    report(f"settle_seconds_{name}", took, "s", **facts)
    report(f"settle_per_s_{name}", count / took, "1/s")
    return took


def settle(
    spark: SparkSession, path: Path, url: str, count: int
) -> tuple[float, dict[str, object]]:
    """Run one round; return its seconds, and the CPU seconds by process."""
    uuid = make_ledger(url, count)
    with filled(path, count, uuid, BY_PIPELINE) as broker:
        cpu = CpuTimes(broker=broker.process.pid)
        began = time.perf_counter()
        done = settle_round(spark, [broker.address], Ledgers({"shop": LedgerConfig(url=url)}))
        took = time.perf_counter() - began
        spent = cpu.spent()
    assert (done.committed, done.rolled_back) == (count // 2, count // 2), done
    return took, spent


def small(spark: SparkSession, path: Path) -> None:
    """Time a round on a warm session that reads a few transactions without an online producer."""
    with filled(path, SMALL, "", BY_PIPELINE) as broker:
        settling = Settling(spark, Ledgers({}))
        done = [settling.round([broker.address]) for _ in range(10)]
    assert all(one.no_producer == SMALL for one in done), done
    times = [one.took_ms / 1_000 for one in done]
    report("settle_small_round_s", min(times), "s", runs=times)


def producers(spark: SparkSession, path: Path) -> None:
    """Ask producers about transactions without a ledger, round after round."""
    with filled(path, PRODUCED, "", BY_PIPELINE) as broker, answering(broker):
        cpu = CpuTimes(broker=broker.process.pid)
        began = time.perf_counter()
        rounds: list[RoundSummary] = []
        while not rounds or rounds[-1].seen:
            rounds.append(settle_round(spark, [broker.address], Ledgers({}), asks_max=ASKS_MAX))
        took = time.perf_counter() - began
        spent = cpu.spent()
    asked = sum(one.asked for one in rounds)
    report(
        "settle_producers_per_s_10k",
        PRODUCED / took,
        "1/s",
        rounds=len(rounds),
        asked=asked,
        **spent,
    )
