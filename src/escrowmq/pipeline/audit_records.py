"""Half and op records against the state table and the queues, on brokers that go on working.

The log is read up to the pins, the rest a little later.  So what looks wrong is looked at a second
time, with what the log has gained since: a transaction that went on meanwhile is no finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline import audit
from escrowmq.pipeline.audit import FOUND, NAME, OTHER
from escrowmq.pipeline.audit_findings import MAY_PASS, Finding
from escrowmq.pipeline.audit_pins import Pin, take_pins
from escrowmq.pipeline.audit_ranges import COUNT, FINDING, PART_OF, fold_ranges
from escrowmq.pipeline.audit_views import Views
from escrowmq.pipeline.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.facts import FIRST, HALF_OFFSET, HEAD, IS_COPY, MESSAGE_COUNT, STATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX = 4
LOOK_AGAIN_S = 1.0
"""A large batch is shown slice by slice: its last messages come some moments after its decision."""


@dataclass(frozen=True)
class Evidence:
    """What is held against each other; what is None is left out."""

    halves: DataFrame
    ops: DataFrame
    table: DataFrame | None
    visible: DataFrame | None


@dataclass(frozen=True)
class Judged:
    """What came of a comparison."""

    #: ``audit.FOUND``.
    found: DataFrame
    counts: Counter[str]
    #: Broker, first half offset of a range, what was counted in it, and how many.
    along: list[tuple[str, int, str, int]]


def gather(views: Views) -> Evidence:
    """All that is needed, and no column more."""
    visible = views.visible("broker", HALF_OFFSET)
    if visible is not None:
        visible = visible.where(F.col(HALF_OFFSET).isNotNull() & views.is_within(HALF_OFFSET))
    return Evidence(
        halves=views.halves(FIRST, HEAD, MESSAGE_COUNT, IS_COPY),
        ops=views.ops(FIRST, MESSAGE_COUNT, STATE),
        table=views.transactions(HALF_OFFSET, MESSAGE_COUNT, STATE),
        visible=visible,
    )


def by_ranges(pins: Sequence[Pin], given: Evidence) -> Judged:
    """Judge by ranges of half offsets: fast."""
    known_from = {pin.name: pin.known_from for pin in pins}
    folded = fold_ranges(given.halves, given.ops, given.table, given.visible, known_from)
    # It is small, and read several times.
    folded = folded.persist(StorageLevel.MEMORY_AND_DISK)
    told = folded.where(folded.what == COUNT).select(BROKER, HALF_OFFSET, NAME, OTHER).collect()
    counts: Counter[str] = Counter()
    for row in told:
        counts[row.name] += row.other
    parts = audit.findings_in_parts(folded.where(folded.what == PART_OF))
    found = folded.where(folded.what == FINDING).select(*FOUND).unionByName(parts)
    return Judged(found, counts, [tuple(row) for row in told])


def by_joins(pins: Sequence[Pin], given: Evidence) -> Judged:
    """Judge by plain joins: the same, with nothing in it but equality."""
    halves = given.halves
    folded = audit.requests(halves, given.ops).persist(StorageLevel.MEMORY_AND_DISK)
    is_open_end = F.col(IS_COPY) & (F.col(STATE) == 0)
    parts = folded.where(~is_open_end).withColumnRenamed(STATE, audit.RECORDED)
    found = audit.findings_in_records(folded, halves, given.ops).unionByName(
        audit.findings_in_parts(parts)
    )
    if given.table is not None:
        found = found.unionByName(audit.findings_in_table(folded, halves, given.table))
    if given.visible is not None:
        found = found.unionByName(audit.findings_in_queues(folded, halves, given.visible))
    known_from = halves.sparkSession.createDataFrame(
        [(pin.name, pin.known_from) for pin in pins], f"{BROKER} string, {audit.KNOWN_FROM} bigint"
    )
    heads = folded.where(F.col(FIRST) == F.col(HEAD)).groupBy(STATE).count().collect()
    names = {0: "undecided", 1: "committed", 2: "rolled_back"}
    counts = Counter({names[row[STATE]]: row["count"] for row in heads if row[STATE] in names})
    counts["transactions"] = counts.total()
    return Judged(audit.within_horizon(found, known_from), counts, [])


def look_again(spark: SparkSession, pins: Sequence[Pin], found: DataFrame) -> DataFrame:
    """Without what passed meanwhile, or went beyond the horizon."""
    found = found.persist(StorageLevel.MEMORY_AND_DISK)
    for look in range(LOOKS_MAX):
        doubtful = F.col(NAME).isin([one.value for one in MAY_PASS])
        if not found.where(doubtful).count():
            break
        if look:
            time.sleep(LOOK_AGAIN_S)
        now = take_pins([pin.address for pin in pins])
        left = _without_passed(spark, pins, now, found)
        left = left.localCheckpoint(eager=True)
        found.unpersist()
        found = left
    return found


def _without_passed(
    spark: SparkSession, pins: Sequence[Pin], now: Sequence[Pin], found: DataFrame
) -> DataFrame:
    since = [
        replace(later, log_start=max(pin.log_end, later.log_start), is_cut=False)
        for pin, later in zip(pins, now, strict=True)
    ]
    views = Views(spark, since)
    went_on = (
        views.ops(FIRST, HEAD)
        .unionByName(views.halves(FIRST, HEAD))
        .select(BROKER, F.explode(F.array(FIRST, HEAD)).alias(HALF_OFFSET))
        .distinct()
    )
    doubtful = F.col(NAME).isin([one.value for one in MAY_PASS])
    kept = found.where(doubtful).join(went_on, on=[BROKER, HALF_OFFSET], how="left_anti")
    shown = views.visible("broker", HALF_OFFSET, since=pins)
    if shown is not None:
        kept = _without_shown(kept, shown)
    for pin, later in zip(pins, now, strict=True):
        if later.log_start > pin.log_start and not pin.is_cut:
            # Deleted while it was read: nobody can say any more what was there.
            is_gone = (F.col(BROKER) == pin.name) & (F.col(HALF_OFFSET) < later.known_from)
            kept = kept.where(~is_gone)
    return found.where(~doubtful).unionByName(kept).select(*FOUND)


def _without_shown(found: DataFrame, shown: DataFrame) -> DataFrame:
    """Count what has become visible since, and leave out what is whole now."""
    is_hidden = F.col(NAME) == Finding.COMMITTED_NOT_VISIBLE.value
    last = F.col(HALF_OFFSET) + F.col(MESSAGE_COUNT) - 1
    offsets = found.where(is_hidden).select(
        BROKER,
        HALF_OFFSET,
        F.explode(F.sequence(F.col(HALF_OFFSET), last)).alias("shown"),
    )
    come = (
        shown.select(BROKER, F.col(HALF_OFFSET).alias("shown"))
        .distinct()
        .join(offsets, on=[BROKER, "shown"], how="inner")
        .groupBy(BROKER, HALF_OFFSET)
        .agg(F.count("*").alias("come"))
    )
    is_whole_now = is_hidden & (F.col(OTHER) + F.col("come") >= F.col(MESSAGE_COUNT))
    return (
        found.join(come, on=[BROKER, HALF_OFFSET], how="left")
        .where(~F.coalesce(is_whole_now, F.lit(False)))  # noqa: FBT003 -- a column's value
        .select(*FOUND)
    )
