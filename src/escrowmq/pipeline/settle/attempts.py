"""Rolls back Spark sink attempts that will never be committed, based on evidence alone.

Evidence decides only attempts whose home is the broker that holds them. A part whose home is
another broker ends as the attempt did there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import EscrowError
from escrowmq.model.lineage import Sight
from escrowmq.model.sink_attempt import is_part
from escrowmq.pipeline.settle.brokers import decided_batches
from escrowmq.pipeline.settle.parts import settle_parts
from escrowmq.pipeline.settle.rows import ReportKind
from escrowmq.pipeline.settle.stages import reported
from escrowmq.pipeline.settle.tasks import TellTask
from escrowmq.pipeline.sink.orphans import orphaned
from escrowmq.pipeline.views.facts import BROKER, PRODUCER_GROUP
from escrowmq.transaction.commands import VerdictKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Done = tuple[list[dict[str, Any]], Mapping[str, EscrowError]]
"""The reports of what was done, and the brokers that could not be reached.

Attempts that depend on an unreachable broker are left alone.
"""


def settle_attempts(
    spark: SparkSession,
    attempts: pa.Table,
    homes: Mapping[str, str],
    sights: Mapping[str, Sight],
) -> Done:
    """Roll back attempts with evidence against them, then end parts as their homes did.

    `homes` maps broker names to addresses. `sights` maps broker addresses to histories.
    """
    is_part_of = pa.array([is_part(group) for group in attempts.column(PRODUCER_GROUP).to_pylist()])
    at_home = attempts.filter(pc.invert(is_part_of))
    # Homes first: parts of an attempt that is rolled back at home then follow in the same round.
    done, away = _settle_at_home(spark, at_home, sights) if at_home.num_rows else ([], {})
    parts = attempts.filter(is_part_of)
    if parts.num_rows:
        more, also_away = settle_parts(parts, homes, sights)
        done, away = done + more, {**away, **also_away}
    return done, away


def _settle_at_home(spark: SparkSession, attempts: pa.Table, sights: Mapping[str, Sight]) -> Done:
    """Roll back attempts with evidence against them."""
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
    done = reported(orphans, TellTask(VerdictKind.ROLLBACK, ReportKind.ATTEMPT, sights))
    return done.toArrow().to_pylist(), away


def _of(broker: str, batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch]).append_column(BROKER, pa.repeat(broker, batch.num_rows))
