"""Attempts of Spark sinks that nobody will ever commit are rolled back, by evidence alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.facts import BROKER
from escrowmq.pipeline.settle import told
from escrowmq.pipeline.settle_brokers import decided_batches
from escrowmq.pipeline.settle_rows import Kind
from escrowmq.pipeline.settle_tasks import TellTask
from escrowmq.pipeline.sink_orphans import orphaned
from escrowmq.transaction.commands import VerdictKind

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql import SparkSession


def settle_attempts(
    spark: SparkSession, attempts: pa.Table
) -> tuple[list[dict[str, Any]], Mapping[str, EscrowError]]:
    """Roll back those with evidence against them.

    The reports of what was done, and brokers that could not be asked for their evidence: what is
    held there is left alone.
    """
    import pyarrow as pa
    import pyarrow.compute as pc  # type: ignore[import-untyped]  # it brings no types

    away: dict[str, EscrowError] = {}
    decided: list[pa.Table] = []
    for broker in attempts.column(BROKER).unique().to_pylist():
        try:
            decided += [_of(broker, batch) for batch in decided_batches(broker)]
        except EscrowError as error:
            away[broker] = error
            attempts = attempts.filter(pc.not_equal(attempts.column(BROKER), broker))
    if not attempts.num_rows:
        return [], away
    batches = pa.concat_tables(decided)
    orphans = orphaned(spark.createDataFrame(attempts), spark.createDataFrame(batches))
    done = told(orphans, TellTask(VerdictKind.ROLLBACK, Kind.ATTEMPT))
    return done.toArrow().to_pylist(), away


def _of(broker: str, batch: pa.RecordBatch) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_batches([batch]).append_column(BROKER, pa.repeat(broker, batch.num_rows))
