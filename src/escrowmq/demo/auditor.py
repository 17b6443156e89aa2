"""The process that audits both runs: it starts Spark and compares.

python -m escrowmq.demo.auditor '{"broker": "127.0.0.1:10911", …}'
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.demo.figures import Audited, DecisionCounts
from escrowmq.demo.order_service import GROUP
from escrowmq.demo.processes import ChildTask
from escrowmq.demo.shop import ORDERS, Shop
from escrowmq.pipeline.config import PipelineConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.pipeline.audit.compare import AuditRequest

BY_ROUNDS = frozenset({"broker", "settle"})
"""The log's names for settle rounds, of the broker and of a pipeline, as what decided."""

_COMMITTED, _ROLLED_BACK = "committed", "rolled_back"


class AuditorTask(ChildTask, frozen=True, kw_only=True):
    """The task of the auditor."""

    broker: str
    #: Folder and topic of each run.
    plain: tuple[str, str]
    transactional: tuple[str, str]
    cache: str
    #: File that the result is written to.
    result: str


def request(broker: str, folder: str, topic: str, *, with_ledger: bool) -> AuditRequest:
    """Make the audit request for one run: compare its orders with its topic."""
    from escrowmq.pipeline.audit.business import BusinessTable
    from escrowmq.pipeline.audit.compare import AuditRequest

    url = Shop(Path(folder)).url(ORDERS)
    return AuditRequest(
        brokers=(broker,),
        topics=(topic,),
        ledgers={ORDERS: url} if with_ledger else {},
        business=BusinessTable(url=url, table="orders", key="id", where="paid = 1"),
    )


def decided(spark: SparkSession, broker: str) -> DecisionCounts:
    """Read from half and op records what decided each transaction, and after how long."""
    from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

    def view(name: str, *columns: str) -> Any:  # noqa: ANN401 -- a DataFrame
        reader = spark.read.format("escrowmq").options(view=name, broker=broker)
        return reader.option("columns", ",".join(columns)).load()

    stored = F.min("stored_at_ms").alias("stored_at_ms")
    is_of_run = F.col("producer_group") == GROUP
    halves = view("halves", "head", "stored_at_ms", "producer_group").where(is_of_run)
    halves = halves.groupBy("head").agg(stored)
    ops = view("ops", "head", "state", "decided_by", "decided_at_ms").dropDuplicates(["head"])
    age_ms = (F.col("decided_at_ms") - F.col("stored_at_ms")).alias("age_ms")
    told = halves.join(ops, on="head", how="left").select("state", "decided_by", age_ms)
    rows = told.collect()
    counts = Counter((row.state, row.decided_by in BY_ROUNDS) for row in rows)
    return DecisionCounts(
        committed_by_producer=counts[_COMMITTED, False],
        rolled_back_by_producer=counts[_ROLLED_BACK, False],
        committed_by_ledger=counts[_COMMITTED, True],
        rolled_back_by_fence=counts[_ROLLED_BACK, True],
        ages_ms=sorted(row.age_ms for row in rows if row.decided_by in BY_ROUNDS),
        undecided=counts[None, False],
    )


def main(given: str) -> None:
    """Audit both runs, and write the result to the task's file."""
    from escrowmq.pipeline.audit.job import run_audit
    from escrowmq.pipeline.spark.scratch import scratch_in
    from escrowmq.pipeline.spark.start_cache import quick_session

    task = AuditorTask.take(given)
    cache = Path(task.cache)
    with scratch_in(cache) as scratch:
        spark = quick_session(PipelineConfig(), cache=cache, scratch=scratch)
        plain = request(task.broker, *task.plain, with_ledger=False)
        transactional = request(task.broker, *task.transactional, with_ledger=True)
        done = Audited(
            plain=run_audit(spark, plain),
            transactional=run_audit(spark, transactional),
            decided=decided(spark, task.broker),
        )
        Path(task.result).write_bytes(msgspec.json.encode(done))
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
