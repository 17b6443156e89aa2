"""Compares the lake with the brokers: archived rows must exist once, and agree.

The archive records its own position, because the rows that are left cannot prove it. In a lake that
an older program archived, a queue or a log counts as archived from its lowest to its highest
offset. Anything below the beginning of the brokers' own data is not compared.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit.cases import as_findings, when
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.source.message_columns import QUEUE_ID, QUEUE_OFFSET, TOPIC, VISIBLE_AT_MS
from escrowmq.pipeline.views.facts import (
    AT_MS,
    DECIDED_AT_MS,
    EVENT,
    HALF_OFFSET,
    HEAD,
    LOG_OFFSET,
    STATE_CODE,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.transaction.states import State

TIMES, RUNS, IS_HERE = "times", "runs", "is_here"
ARCHIVED_END, KEPT_FROM_MS = "archived_end", "kept_from_ms"
REACH = f"{ARCHIVED_END} bigint, {KEPT_FROM_MS} bigint"
"""The first offset not archived, null if not recorded; and since when retention kept rows."""

_QUEUE = (BROKER, TOPIC, QUEUE_ID)
_DECIDED = (State.COMMITTED.label, State.ROLLED_BACK.label)


def findings_in_messages(
    visible: DataFrame, messages: DataFrame, quarantine: DataFrame, spans: DataFrame
) -> DataFrame:
    """Messages that the lake lacks, has twice, or has although the queue does not.

    ``messages`` and ``quarantine`` are the lake's. ``spans`` has the queues' ``start`` and ``end``
    at the pins, ``end_after`` (their ends after the lake was read), and ``REACH``.
    """
    archived = messages.unionByName(quarantine)
    counted = archived.groupBy(*_QUEUE, QUEUE_OFFSET).agg(
        F.count("*").alias(TIMES), F.min(VISIBLE_AT_MS).alias("archived_at_ms")
    )
    # The quarantine gets its part of a batch first, and loses its old rows last.
    reach = messages.groupBy(*_QUEUE).agg(
        F.min(QUEUE_OFFSET).alias("low"), F.max(QUEUE_OFFSET).alias("high")
    )
    here = visible.withColumn(IS_HERE, F.lit(True))  # noqa: FBT003 -- a column's value
    compared = (
        here.join(counted, on=[*_QUEUE, QUEUE_OFFSET], how="full")
        .join(F.broadcast(reach), on=list(_QUEUE), how="left")
        .join(F.broadcast(spans), on=list(_QUEUE), how="inner")
    )
    offset = F.col(QUEUE_OFFSET)
    is_archived = _is_reached(offset, F.col(VISIBLE_AT_MS))
    is_in_queue = (offset >= F.col("start")) & (offset < F.col("end"))
    is_missing = F.col(TIMES).isNull() & is_archived & is_in_queue
    is_unknown = F.col(IS_HERE).isNull() & (is_in_queue | (offset >= F.col("end_after")))
    name = F.coalesce(
        when(FindingName.LAKE_MESSAGE_MISSING, is_missing),
        when(FindingName.LAKE_MESSAGE_UNKNOWN, is_unknown),
        when(FindingName.LAKE_MESSAGE_DOUBLED, F.col(TIMES) > 1),
    )
    place = F.format_string("%s, queue %d, offset %d", TOPIC, QUEUE_ID, QUEUE_OFFSET)
    times = F.concat(F.coalesce(TIMES, F.lit(0)), F.lit(" times in the lake"))
    at_ms = F.coalesce(VISIBLE_AT_MS, "archived_at_ms")
    return _found(compared, name, at_ms, F.concat_ws("; ", place, times))


def decisions(ops: DataFrame) -> DataFrame:
    """Each decided transaction: its head, state, time, log offset, and number of runs."""
    return (
        ops.groupBy(BROKER, HEAD)
        .agg(
            F.count("*").alias(RUNS),
            F.max(STATE_CODE).alias(STATE_CODE),
            F.min(DECIDED_AT_MS).alias(DECIDED_AT_MS),
            F.min(LOG_OFFSET).alias(LOG_OFFSET),
        )
        .withColumnRenamed(HEAD, HALF_OFFSET)
    )


def findings_in_life_lines(decided: DataFrame, events: DataFrame, starts: DataFrame) -> DataFrame:
    """Decisions that the lake lacks, has twice, or has differently.

    ``events`` are the lake's. ``starts`` has each broker's ``known_from``, ``log_start``,
    ``log_end``, ``log_end_after`` (after the lake was read), ``cut_from`` (nothing below it was
    requested), and ``REACH``.
    """
    state = F.coalesce(
        *(F.when(F.col(EVENT) == label, F.lit(int(State[label.upper()]))) for label in _DECIDED)
    )
    reach = events.groupBy(BROKER).agg(
        F.min(LOG_OFFSET).alias("low"), F.max(LOG_OFFSET).alias("high")
    )
    archived = (
        events.where(F.col(EVENT).isin(*_DECIDED))
        .groupBy(BROKER, HALF_OFFSET)
        .agg(
            F.count("*").alias(TIMES),
            F.max(state).alias("archived"),
            F.min(state).alias("archived_too"),
            F.min(LOG_OFFSET).alias("archived_at"),
            F.min(AT_MS).alias("archived_at_ms"),
        )
    )
    compared = (
        decided.join(archived, on=[BROKER, HALF_OFFSET], how="full")
        .join(F.broadcast(reach), on=BROKER, how="left")
        .join(F.broadcast(starts), on=BROKER, how="inner")
        # Some requests of a transaction may be above the cut although it begins below.
        .where(F.col(HALF_OFFSET) >= F.col("cut_from"))
    )
    is_reached = _is_reached(F.col(LOG_OFFSET), F.col(DECIDED_AT_MS))
    archived_at = F.col("archived_at")
    is_of_log = (archived_at >= F.col("log_start")) & (
        (archived_at < F.col("log_end")) | (archived_at >= F.col("log_end_after"))
    )
    is_known = F.col(HALF_OFFSET) >= F.col("known_from")
    is_fewer = F.coalesce(TIMES, F.lit(0)) < F.col(RUNS)
    recorded = F.col(STATE_CODE)
    is_other = (F.col("archived") != recorded) | (F.col("archived_too") != recorded)
    name = F.coalesce(
        when(FindingName.LAKE_CONTRADICTS, is_other),
        when(FindingName.LAKE_DECISION_MISSING, is_fewer & is_reached),
        when(FindingName.LAKE_DECISION_UNKNOWN, F.col(STATE_CODE).isNull() & is_of_log & is_known),
        when(FindingName.LAKE_DECISION_DOUBLED, F.col(TIMES) > F.col(RUNS)),
    )
    times = F.concat(F.coalesce(TIMES, F.lit(0)), F.lit(" times in the lake's life lines"))
    at_ms = F.coalesce(DECIDED_AT_MS, "archived_at_ms")
    return _found(compared, name, at_ms, times)


def _is_reached(offset: Column, at_ms: Column) -> Column:
    """Whether it was archived, and the lake's retention cannot have deleted it."""
    is_recorded = (offset < F.col(ARCHIVED_END)) & (at_ms >= F.col(KEPT_FROM_MS))
    is_between = (offset >= F.col("low")) & (offset <= F.col("high"))
    return F.when(F.col(ARCHIVED_END).isNotNull(), is_recorded).otherwise(is_between)


def _found(compared: DataFrame, name: Column, at_ms: Column, detail: Column) -> DataFrame:
    """The rows that have a name, as findings."""
    named = compared.withColumn(NAME, name).where(F.col(NAME).isNotNull())
    return as_findings(named, at_ms=at_ms, detail=detail)
