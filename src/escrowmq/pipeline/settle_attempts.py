"""Attempts of Spark sinks that nobody will ever commit are rolled back, by evidence alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.facts import BROKER
from escrowmq.pipeline.settle import told
from escrowmq.pipeline.settle_brokers import Standing, decided_batches
from escrowmq.pipeline.settle_rows import Kind, arrow_schema
from escrowmq.pipeline.settle_tasks import TellTask
from escrowmq.transaction.commands import VerdictKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settle_attempts(
    spark: SparkSession, attempts: Sequence[Mapping[str, Any]], standing: Sequence[Standing]
) -> list[dict[str, Any]]:
    """Roll back those with evidence against them; the reports of what was done."""
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

    undecided = spark.createDataFrame(pa.Table.from_pylist(list(attempts), schema=arrow_schema()))
    batches = spark.createDataFrame(
        pa.concat_tables(
            pa.Table.from_batches([batch]).append_column(
                BROKER, pa.repeat(broker.address, batch.num_rows)
            )
            for broker in standing
            for batch in decided_batches(broker.address)
        )
    )
    orphans = import_module("escrowmq.pipeline.sink_orphans").orphaned(undecided, batches)
    done = told(orphans, TellTask(VerdictKind.ROLLBACK, Kind.ATTEMPT))
    reports: list[dict[str, Any]] = done.toArrow().to_pylist()
    return reports
