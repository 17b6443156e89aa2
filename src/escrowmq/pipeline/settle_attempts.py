"""Attempts of Spark sinks that nobody will ever commit are rolled back, by evidence alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.facts import BROKER
from escrowmq.pipeline.settle import told
from escrowmq.pipeline.settle_brokers import Standing, decided_batches
from escrowmq.pipeline.settle_rows import Kind
from escrowmq.pipeline.settle_tasks import TellTask
from escrowmq.pipeline.sink_orphans import orphaned
from escrowmq.transaction.commands import VerdictKind

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql import SparkSession


def settle_attempts(
    spark: SparkSession, attempts: pa.Table, standing: Sequence[Standing]
) -> list[dict[str, Any]]:
    """Roll back those with evidence against them; the reports of what was done."""
    import pyarrow as pa

    batches = pa.concat_tables(
        pa.Table.from_batches([batch]).append_column(
            BROKER, pa.repeat(broker.address, batch.num_rows)
        )
        for broker in standing
        for batch in decided_batches(broker.address)
    )
    orphans = orphaned(spark.createDataFrame(attempts), spark.createDataFrame(batches))
    done = told(orphans, TellTask(VerdictKind.ROLLBACK, Kind.ATTEMPT))
    reports: list[dict[str, Any]] = done.toArrow().to_pylist()
    return reports
