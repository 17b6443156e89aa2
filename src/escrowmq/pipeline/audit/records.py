"""Compares half and op records with the state table and the queues of brokers that keep working.

The log is read up to the pins, and the rest a little later. So a suspicious finding is checked
again with what the log has gained since. A transaction that progressed in the meantime is not a
finding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.audit import joins
from escrowmq.pipeline.audit.arrays import PARKED, UNDECIDED
from escrowmq.pipeline.audit.findings import MAY_PASS, UNRECORDED, FindingName
from escrowmq.pipeline.audit.joins import FOUND, NAME, OTHER
from escrowmq.pipeline.audit.pins import Pin, since, take_pins
from escrowmq.pipeline.audit.places import END, START, unexplained
from escrowmq.pipeline.audit.ranges import COUNT, FINDING, PART_OF, fold_ranges
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.source.message_columns import QUEUE_ID, QUEUE_OFFSET, TOPIC
from escrowmq.pipeline.views.facts import (
    AT_MS,
    DETAIL,
    EVENT,
    FIRST,
    HALF_OFFSET,
    HEAD,
    IS_COPY,
    LOG_OFFSET,
    MESSAGE_COUNT,
    STATE_CODE,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER

KNOWN_FROM = "known_from"

LOOKS_MAX = 4
LOOK_AGAIN_S = 1.0
"""A large batch becomes visible in slices, so its last messages come shortly after its decision."""


@dataclass(frozen=True)
class AuditEvidence:
    """The evidence to compare. Evidence that is None is left out."""

    halves: DataFrame
    ops: DataFrame
    table: DataFrame | None
    visible: DataFrame | None


@dataclass(frozen=True)
class Judged:
    """Result of a comparison."""

    #: ``joins.FOUND``.
    found: DataFrame
    counts: Counter[str]
    #: Broker, first half offset of a range, name of the count, and its value.
    along: list[tuple[str, int, str, int]]


def gather(views: Views, *, with_visible: bool = True) -> AuditEvidence:
    """Gather the evidence, with only the needed columns."""
    visible = views.visible("broker", HALF_OFFSET) if with_visible else None
    if visible is not None:
        visible = visible.where(F.col(HALF_OFFSET).isNotNull() & views.is_within(HALF_OFFSET))
    return AuditEvidence(
        halves=views.halves(FIRST, HEAD, MESSAGE_COUNT, IS_COPY),
        ops=views.ops(FIRST, MESSAGE_COUNT, STATE_CODE),
        table=views.transactions(HALF_OFFSET, MESSAGE_COUNT, STATE_CODE),
        visible=visible,
    )


def by_ranges(pins: Sequence[Pin], given: AuditEvidence) -> Judged:
    """Compare by ranges of half offsets, which is fast."""
    known_from = {pin.name: pin.known_from for pin in pins}
    folded = fold_ranges(given.halves, given.ops, given.table, given.visible, known_from)
    # It is small and read several times.
    folded = folded.persist(StorageLevel.MEMORY_AND_DISK)
    told = folded.where(folded.what == COUNT).select(BROKER, HALF_OFFSET, NAME, OTHER).collect()
    counts: Counter[str] = Counter()
    for row in told:
        counts[row.name] += row.other
    parts = joins.findings_in_parts(folded.where(folded.what == PART_OF))
    found = folded.where(folded.what == FINDING).select(*FOUND).unionByName(parts)
    return Judged(found, counts, [tuple(row) for row in told])


def by_joins(pins: Sequence[Pin], given: AuditEvidence) -> Judged:
    """Compare by plain joins, which need nothing but equality."""
    halves = given.halves
    folded = joins.requests(halves, given.ops).persist(StorageLevel.MEMORY_AND_DISK)
    is_open_end = F.col(IS_COPY) & (F.col(STATE_CODE) == 0)
    parts = folded.where(~is_open_end).withColumnRenamed(STATE_CODE, joins.RECORDED)
    found = joins.findings_in_records(folded, halves, given.ops).unionByName(
        joins.findings_in_parts(parts)
    )
    if given.table is not None:
        found = found.unionByName(joins.findings_in_table(folded, halves, given.table))
    if given.visible is not None:
        found = found.unionByName(joins.findings_in_queues(folded, halves, given.visible))
    known_from = halves.sparkSession.createDataFrame(
        [(pin.name, pin.known_from) for pin in pins], f"{BROKER} string, {KNOWN_FROM} bigint"
    )
    heads = folded.where(F.col(FIRST) == F.col(HEAD)).groupBy(STATE_CODE).count().collect()
    names = {0: "undecided", 1: "committed", 2: "rolled_back"}
    by_code = {row[STATE_CODE]: row["count"] for row in heads}
    counts = Counter({names[code]: count for code, count in by_code.items() if code in names})
    counts["transactions"] = counts.total()
    return Judged(within_horizon(found, known_from), counts, [])


def within_horizon(found: DataFrame, known_from: DataFrame) -> DataFrame:
    """Drop findings about data that the log no longer has, below ``known_from``.

    An undecided half message is carried forward, so the log must have it however old it is.
    """
    is_of_unknown = F.col(NAME).isin(
        FindingName.OP_WITHOUT_HALF.value,
        FindingName.ROW_WITHOUT_HALF.value,
        FindingName.VISIBLE_WITHOUT_HALF.value,
    )
    is_open_row = (F.col(NAME) == FindingName.ROW_WITHOUT_HALF.value) & F.col(OTHER).isin(
        UNDECIDED, PARKED
    )
    begins = F.coalesce(KNOWN_FROM, F.lit(0))
    is_older = is_of_unknown & ~is_open_row & (F.col(HALF_OFFSET) < begins)
    return found.join(known_from, on=BROKER, how="left").where(~is_older).select(*FOUND)


def _is_hidden() -> Column:
    return F.col(NAME) == FindingName.COMMITTED_NOT_VISIBLE.value


def is_doubtful() -> Column:
    """Whether a second look may explain the finding."""
    return F.col(NAME).isin([one.value for one in MAY_PASS])


def look_again(spark: SparkSession, pins: Sequence[Pin], found: DataFrame) -> DataFrame:
    """Drop findings that have resolved, have an explanation, or are now beyond the horizon."""
    found = found.persist(StorageLevel.MEMORY_AND_DISK)
    for look in range(LOOKS_MAX):
        if not found.where(is_doubtful()).count():
            return found
        if look:
            time.sleep(LOOK_AGAIN_S)
        now = take_pins([pin.address for pin in pins])
        left = _without_passed(spark, pins, now, found).localCheckpoint(eager=True)
        hidden = left.where(_is_hidden())
        if not hidden.count():
            return left
        places = _places(spark, pins, now)
        ops = Views(spark, pins).ops(FIRST, MESSAGE_COUNT, LOG_OFFSET)
        found = left.where(~_is_hidden()).unionByName(unexplained(hidden, ops, places))
        found = found.localCheckpoint(eager=True)
        # The findings are final, unless queues are still being filled.
        if not places.where(F.col(QUEUE_OFFSET) + F.col(MESSAGE_COUNT) > F.col(END)).count():
            return found
    return found


def _places(spark: SparkSession, pins: Sequence[Pin], now: Sequence[Pin]) -> DataFrame:
    """Queue offsets that decisions assigned, with each queue's start and end; null without it."""
    columns = (LOG_OFFSET, EVENT, FIRST, MESSAGE_COUNT, TOPIC, QUEUE_ID, QUEUE_OFFSET)
    given = Views(spark, pins).events(*columns).where(F.col(EVENT) == "visible")
    spans = [
        (pin.name, queue.topic, queue.queue_id, queue.start, queue.end)
        for pin in now
        for queue in pin.queues
    ]
    schema = f"{BROKER} string, {TOPIC} string, {QUEUE_ID} int, {START} bigint, {END} bigint"
    queues = F.broadcast(spark.createDataFrame(spans, schema))
    return given.join(queues, on=[BROKER, TOPIC, QUEUE_ID], how="left")


def unreadable(views: Views, found: DataFrame) -> DataFrame | None:
    """Damaged parts of the log, if records are missing; None if none are missing."""
    is_missing = F.col(NAME).isin([one.value for one in UNRECORDED])
    if not found.where(is_missing).count():
        return None
    return views.events(LOG_OFFSET, AT_MS, EVENT, DETAIL).where(F.col(EVENT) == "unreadable")


def _without_passed(
    spark: SparkSession, pins: Sequence[Pin], now: Sequence[Pin], found: DataFrame
) -> DataFrame:
    views = Views(spark, since(pins, now))
    went_on = (
        views.ops(FIRST, HEAD)
        .unionByName(views.halves(FIRST, HEAD))
        .select(BROKER, F.explode(F.array(FIRST, HEAD)).alias(HALF_OFFSET))
        .distinct()
    )
    kept = found.where(is_doubtful()).join(went_on, on=[BROKER, HALF_OFFSET], how="left_anti")
    shown = views.visible("broker", HALF_OFFSET, since=pins)
    if shown is not None:
        kept = _without_shown(kept, shown)
    for pin, later in zip(pins, now, strict=True):
        if later.log_start > pin.log_start and not pin.is_cut:
            # Retention deleted it during the read, so its content is unknown.
            is_gone = (F.col(BROKER) == pin.name) & (F.col(HALF_OFFSET) < later.known_from)
            kept = kept.where(~is_gone)
    return found.where(~is_doubtful()).unionByName(kept).select(*FOUND)


def _without_shown(found: DataFrame, shown: DataFrame) -> DataFrame:
    """Count messages that became visible since, and drop findings that are now complete."""
    last = F.col(HALF_OFFSET) + F.col(MESSAGE_COUNT) - 1
    offsets = found.where(_is_hidden()).select(
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
    is_whole_now = _is_hidden() & (F.col(OTHER) + F.col("come") >= F.col(MESSAGE_COUNT))
    return (
        found.join(come, on=[BROKER, HALF_OFFSET], how="left")
        .where(~F.coalesce(is_whole_now, F.lit(False)))  # noqa: FBT003 -- a column's value
        .select(*FOUND)
    )
