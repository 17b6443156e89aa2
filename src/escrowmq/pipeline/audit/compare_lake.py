"""The comparison with the lake: what it reads, and when it looks a second time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.audit.compare import AuditRun, ComparisonResult
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.lake import (
    REACH,
    decisions,
    findings_in_life_lines,
    findings_in_messages,
)
from escrowmq.pipeline.audit.pins import Pin, take_pins
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.marks import is_marked, kept_from_ms, marked_end
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE, TRANSACTIONS, LakeTable
from escrowmq.pipeline.source.message_columns import QUEUE_ID, QUEUE_OFFSET, TOPIC, VISIBLE_AT_MS
from escrowmq.pipeline.views.facts import (
    AT_MS,
    DECIDED_AT_MS,
    EVENT,
    FIRST,
    HALF_OFFSET,
    HEAD,
    LOG_OFFSET,
    STATE_CODE,
    TRANSACTION_ID,
)
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX = 4

PlaceT = TypeVar("PlaceT", bound=tuple[object, ...])

_PLACE = (BROKER, TOPIC, QUEUE_ID, QUEUE_OFFSET, VISIBLE_AT_MS)
_SPANS = (
    f"{BROKER} string, {TOPIC} string, {QUEUE_ID} int, start bigint, end bigint,"
    f" end_after bigint, {REACH}"
)
_STARTS = (
    f"{BROKER} string, known_from bigint, log_start bigint, log_end bigint,"
    f" log_end_after bigint, cut_from bigint, {REACH}"
)
#: The brokers no longer have it, possibly because retention ran during the read.
_UNKNOWN = (FindingName.LAKE_MESSAGE_UNKNOWN.value, FindingName.LAKE_DECISION_UNKNOWN.value)


def compare_lake(work: AuditRun) -> ComparisonResult:
    """Compare archived messages and life lines."""
    lake = Lake(work.request.lake)
    archived = _Archived(work.spark, lake)
    after = take_pins([pin.address for pin in work.pins])
    pins = work.pins
    for _ in range(LOOKS_MAX):
        found = archived.findings(pins, after).localCheckpoint(eager=True)
        if not found.where(F.col(NAME).isin(*_UNKNOWN)).count():
            break
        now = take_pins([pin.address for pin in pins], since_ms=work.request.since_ms)
        if _begins(now) == _begins(pins):
            break
        pins = now
    else:
        # Retention always ran during the read, so these findings prove nothing.
        found = found.where(~F.col(NAME).isin(*_UNKNOWN))
    return ComparisonResult(
        found=found,
        counts=archived.counts(),
        notes=archived.horizon(pins),
        unproved=archived.unproved(),
    )


def _begins(pins: Sequence[Pin]) -> list[tuple[int, list[int]]]:
    return [(pin.log_start, [queue.start for queue in pin.queues]) for pin in pins]


class _Archived:
    """The lake at one point in time."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        # Read positions before the rows, and retention marks after them. Everything between the two
        # must then be in the rows.
        self._messages_at, self._events_at = (_found(lake, one) for one in (MESSAGES, TRANSACTIONS))
        # Read the quarantine after the messages, because its part of a batch is committed first.
        self._messages = _named(spark, lake, MESSAGES).select(*_PLACE, LOG_OFFSET)
        self._quarantine = _named(spark, lake, QUARANTINE).select(*_PLACE, LOG_OFFSET)
        events = _named(spark, lake, TRANSACTIONS).where(F.col(HEAD).isNotNull())
        self._events = events.select(
            BROKER, F.col(HEAD).alias(HALF_OFFSET), EVENT, LOG_OFFSET, AT_MS
        )
        later = [lake.find(one) for one in (MESSAGES, QUARANTINE)]
        self._messages_kept_ms = max(kept_from_ms(one) for one in later if one is not None)
        self._events_kept_ms = kept_from_ms(_found(lake, TRANSACTIONS))

    def findings(self, pins: Sequence[Pin], after: Sequence[Pin]) -> DataFrame:
        """Differences from the brokers at these pins.

        ``after`` are pins taken after the lake was read.
        """
        views = Views(self._spark, pins)
        columns = (TOPIC, QUEUE_ID, QUEUE_OFFSET, VISIBLE_AT_MS, HALF_OFFSET, TRANSACTION_ID)
        visible = views.visible("broker", *columns)
        if visible is None:
            visible = (
                self._messages.limit(0)
                .drop(LOG_OFFSET)
                .withColumns(
                    {
                        HALF_OFFSET: F.lit(None).cast("bigint"),
                        TRANSACTION_ID: F.lit(None).cast("string"),
                    }
                )
            )
        in_messages = findings_in_messages(
            visible,
            self._of_today(self._messages, pins),
            self._of_today(self._quarantine, pins),
            self._spans(pins, after),
        )
        ops = views.ops(FIRST, HEAD, STATE_CODE, DECIDED_AT_MS, LOG_OFFSET)
        in_life_lines = findings_in_life_lines(
            decisions(ops), self._events, self._starts(pins, after)
        )
        return in_messages.unionByName(in_life_lines)

    def _of_today(self, rows: DataFrame, pins: Sequence[Pin]) -> DataFrame:
        """Drop rows of a deleted topic whose name another topic has now."""
        born = {(pin.name, queue.topic, queue.born) for pin in pins for queue in pin.queues}
        schema = f"{BROKER} string, {TOPIC} string, born bigint"
        topics = F.broadcast(self._spark.createDataFrame(sorted(born), schema))
        is_before = F.col(LOG_OFFSET) < F.col("born")
        found = rows.join(topics, on=[BROKER, TOPIC], how="left").where(
            ~F.coalesce(is_before, F.lit(False))  # noqa: FBT003 -- a column's value
        )
        return found.select(*_PLACE)

    def _spans(self, pins: Sequence[Pin], after: Sequence[Pin]) -> DataFrame:
        """The queues: what the broker has of them, and what the archive recorded."""
        ends_after = {
            (pin.name, queue.topic, queue.queue_id): queue.end
            for pin in after
            for queue in pin.queues
        }
        queues = {
            (pin.name, queue.topic, queue.queue_id): queue for pin in pins for queue in pin.queues
        }
        archived = _archived_ends(self._messages_at, queues)
        spans = [
            (
                *key,
                queue.start,
                queue.end,
                ends_after.get(key, queue.end),
                archived.get(key),
                self._messages_kept_ms,
            )
            for key, queue in queues.items()
        ]
        return self._spark.createDataFrame(spans, _SPANS)

    def _starts(self, pins: Sequence[Pin], after: Sequence[Pin]) -> DataFrame:
        """The logs: what the broker has of them, and what the archive recorded."""
        archived = _archived_ends(self._events_at, [(pin.name,) for pin in pins])
        starts = [
            (
                pin.name,
                pin.known_from,
                pin.log_start,
                pin.log_end,
                later.log_end,
                pin.known_from * pin.is_cut,
                archived.get((pin.name,)),
                self._events_kept_ms,
            )
            for pin, later in zip(pins, after, strict=True)
        ]
        return self._spark.createDataFrame(starts, _STARTS)

    def counts(self) -> dict[str, int]:
        """How much was compared."""
        decided = F.col(EVENT).isin("committed", "rolled_back")
        return {
            "messages": self._messages.count(),
            "quarantined": self._quarantine.count(),
            "decisions": self._events.where(decided).count(),
        }

    def horizon(self, pins: Sequence[Pin]) -> list[str]:
        """Notes on how far the archive has come."""
        ends = _archived_ends(self._events_at, [(pin.name,) for pin in pins])
        return [
            f"{pin.name}: decisions are archived up to log offset {end} of {pin.log_end}"
            if end
            else f"{pin.name}: nothing of this broker is archived"
            for pin in pins
            for end in [ends.get((pin.name,))]
            if end is not None
        ]

    def unproved(self) -> str:
        """Return why missing rows may go unnoticed, or an empty string."""
        if is_marked(self._messages_at) and is_marked(self._events_at):
            return ""
        return (
            "the archive has not recorded its position in this lake, so rows may be missing at the"
            " beginning and the end of a queue: run the archive of this version once"
        )


def _archived_ends(delta: DeltaTable, places: Iterable[PlaceT]) -> dict[PlaceT, int]:
    """The archive's recorded ends by place; empty if it recorded none."""
    return {place: marked_end(delta, *place) for place in places} if is_marked(delta) else {}


def _found(lake: Lake, table: LakeTable) -> DeltaTable:
    """A table that an archive creates before it archives anything."""
    found = lake.find(table)
    if found is None:
        text = "there is no such table: nothing was archived there, or it was deleted"
        raise RequestRefused("lake_missing", text, lake=lake.uri, table=table.name)
    return found


def _named(spark: SparkSession, lake: Lake, table: LakeTable) -> DataFrame:
    """A table with the broker column renamed as in the views."""
    return lake.read(spark, table).withColumnRenamed("broker", BROKER)
