"""Chooses the messages that are compared with the rows of a user's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.topic_names import OWN_PREFIXES
from escrowmq.pipeline.audit.business import (
    KEY,
    MESSAGES,
    ROW_COUNT,
    Batches,
    BusinessTable,
    business_rows,
    keyed,
    messages_without,
    rows_without,
    told_messages,
    told_rows,
)
from escrowmq.pipeline.audit.business_events import EVENT
from escrowmq.pipeline.audit.compare import AuditRun, ComparisonResult
from escrowmq.pipeline.audit.pins import Pin, take_pins
from escrowmq.pipeline.audit.views import Views
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES as ARCHIVED
from escrowmq.pipeline.source.message_columns import QUEUE_ID, QUEUE_OFFSET, TOPIC, VISIBLE_AT_MS
from escrowmq.pipeline.views.facts import BROKER_NAME as BROKER
from escrowmq.pipeline.views.facts import HALF_OFFSET
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.headers import ReadMessagesHeader
from escrowmq.protocol.native.previews import FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import QueueRow

_SPANS = f"{BROKER} string, {TOPIC} string, {QUEUE_ID} int, start bigint"
_PENDING = f"{EVENT} string, {KEY} string, pending bigint"


def compare_business(work: AuditRun) -> ComparisonResult:
    """Compare rows with the messages that consumers see or saw."""
    table = work.request.business
    assert table is not None
    topics = _topics(work)
    rows = business_rows(work.spark, table).persist(StorageLevel.MEMORY_AND_DISK)
    by_key = keyed(_messages(work, table, topics), table).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        unequal = rows_without(rows, by_key).localCheckpoint(eager=True)
        is_lost = F.col(MESSAGES) < F.col(ROW_COUNT)
        found, notes = work.none(), _notes_of_topics(work, topics)
        why_not = _why_lost_is_untold(work, table, topics)
        if why_not:
            notes.append(f"rows without a message are not reported: {why_not}")
        else:
            lost = _without_pending(work, table, topics, unequal.where(is_lost))
            found = found.unionByName(told_rows(lost, table))
        if len(topics) == 1 or work.request.topics:
            recent = by_key.where(F.col(VISIBLE_AT_MS) >= work.request.since_ms)
            found = found.unionByName(told_rows(unequal.where(~is_lost), table))
            found = found.unionByName(told_messages(messages_without(recent, rows), table))
        else:
            # The table may have nothing to do with some of these topics.
            notes.append(
                "only rows without a message are reported; --topic selects messages to compare"
            )
        places = by_key.select(BROKER, TOPIC, QUEUE_ID, QUEUE_OFFSET).distinct()
        keys = rows.select(KEY).distinct()
        counts = {"rows": keys.count(), "messages": places.count()}
        return ComparisonResult(found.localCheckpoint(eager=True), counts, notes)
    finally:
        rows.unpersist()
        by_key.unpersist()


def _topics(work: AuditRun) -> list[str]:
    if work.request.topics:
        return list(work.request.topics)
    topics = {queue.topic for pin in work.pins for queue in pin.queues if queue.end}
    # Retries and dead letters repeat messages. The message that opens a sink attempt is not one.
    return sorted(topic for topic in topics if not topic.startswith(OWN_PREFIXES))


def _notes_of_topics(work: AuditRun, topics: Sequence[str]) -> list[str]:
    """Notes on topics that no broker has: with a misspelled topic, no row has a message."""
    there = {queue.topic for _, queue in _queues(work, topics)}
    return [
        f"no broker has the topic {one}; check its spelling" for one in topics if one not in there
    ]


def _messages(work: AuditRun, table: BusinessTable, topics: Sequence[str]) -> DataFrame:
    """The queues' messages, and from the lake those that retention has deleted."""
    columns = table.message_columns
    archived = work.spark.createDataFrame([], ARCHIVED.ddl())
    if work.request.lake:
        lake = Lake(work.request.lake)
        archived = lake.read(work.spark, ARCHIVED).where(F.col(TOPIC).isin(*topics))
    spans = [(pin.name, one.topic, one.queue_id, one.start) for pin, one in _queues(work, topics)]
    deleted = (
        archived.withColumnRenamed("broker", BROKER)
        .join(F.broadcast(work.spark.createDataFrame(spans, _SPANS)), [BROKER, TOPIC, QUEUE_ID])
        .where(F.col(QUEUE_OFFSET) < F.col("start"))
        .select(BROKER, *columns, F.lit(None).cast("bigint").alias(HALF_OFFSET))
        .dropDuplicates([BROKER, TOPIC, QUEUE_ID, QUEUE_OFFSET])
    )
    visible = work.views.visible("broker", *columns, HALF_OFFSET, topics=topics)
    return deleted if visible is None else visible.unionByName(deleted)


def _queues(work: AuditRun, topics: Sequence[str]) -> list[tuple[Pin, QueueRow]]:
    return [(pin, queue) for pin in work.pins for queue in pin.queues if queue.topic in topics]


def _why_lost_is_untold(work: AuditRun, table: BusinessTable, topics: Sequence[str]) -> str:
    """Return why a row without a message proves nothing, or an empty string if it does."""
    undecided = sum(pin.status.undecided + pin.status.parked for pin in work.pins)
    if table.property_name and undecided:
        return f"{undecided} transactions are undecided, and only a search by keys finds them"
    cut = [(pin, queue) for pin, queue in _queues(work, topics) if queue.start]
    if not cut or _reaches_back(work, cut):
        return ""
    if not work.request.since_ms:
        return (
            "retention has deleted messages; give --lake, or give --since and limit the rows to"
            " the same time with --where"
        )
    oldest = max(_oldest_ms(pin, queue) for pin, queue in cut)
    if oldest > work.request.since_ms:
        return "retention has deleted messages that are younger than --since"
    return ""


def _reaches_back(work: AuditRun, cut: Sequence[tuple[Pin, QueueRow]]) -> bool:
    """Whether the lake has the messages that retention has deleted."""
    if not work.request.lake:
        return False
    archived = Lake(work.request.lake).read(work.spark, ARCHIVED)
    reach = archived.groupBy("broker", TOPIC, QUEUE_ID).agg(
        F.min(QUEUE_OFFSET).alias("low"), F.max(QUEUE_OFFSET).alias("high")
    )
    reached = {(row.broker, row.topic, row.queue_id): row for row in reach.collect()}
    rows = [(reached.get((pin.name, queue.topic, queue.queue_id)), queue) for pin, queue in cut]
    return all(
        row is not None and row.low == 0 and row.high >= queue.start - 1 for row, queue in rows
    )


def _oldest_ms(pin: Pin, queue: QueueRow) -> int:
    """When the first message that the queue still has became visible."""
    header = ReadMessagesHeader(
        topic=queue.topic, queue_id=queue.queue_id, start=queue.start, limit=1
    )
    with NativeCalls(pin.address) as calls:
        found = [one.visible_at_ms for one in calls.call(NativeCode.READ_MESSAGES, header).rows]
    return found[0] if found and found[0] is not None else pin.status.now_ms


def _without_pending(
    work: AuditRun, table: BusinessTable, topics: Sequence[str], lost: DataFrame
) -> DataFrame:
    """Drop rows whose messages are undecided, wait for their delivery time, or came later."""
    if not lost.count():
        return lost
    if table.property_name:
        now = take_pins([pin.address for pin in work.pins])
        views = Views(work.spark, now)
        later = views.visible("broker", *table.message_columns, since=work.pins, topics=topics)
        if later is None:
            return lost
        pending = keyed(later, table).groupBy(EVENT, KEY).agg(F.count("*").alias("pending"))
    else:
        search = _search(work.pins, topics, table)
        pending = lost.select(EVENT, KEY).mapInArrow(search, _PENDING)
    come = F.col(MESSAGES) + F.coalesce("pending", F.lit(0))
    return (
        lost.join(pending, on=[EVENT, KEY], how="left")
        .where(come < F.col(ROW_COUNT))
        .drop("pending")
        .localCheckpoint(eager=True)
    )


def _search(
    pins: Sequence[Pin], topics: Sequence[str], table: BusinessTable
) -> Callable[[Batches], Batches]:
    """Ask the brokers for messages by key. Runs in tasks."""
    ends = {
        (pin.address, queue.topic, queue.queue_id): queue.end
        for pin in pins
        for queue in pin.queues
    }
    asked = [(pin.address, topic) for pin in pins for topic in topics]
    events = {event.which: event for event in table.all_events}

    def count(calls: NativeCalls, address: str, topic: str, which: str, key: str) -> int:
        header = FindMessagesHeader(topic=topic, key=key, with_undecided=True)
        found = calls.call(NativeCode.FIND_MESSAGES, header).rows
        return sum(
            key in one.keys.split(" ")
            and events[which].is_of(one.tags, parse_properties(one.properties.encode()))
            and (
                one.queue_offset is None
                or one.queue_offset >= ends.get((address, topic, one.queue_id), 0)
            )
            for one in found
        )

    def search(batches: Batches) -> Batches:
        with ExitStack() as opened:
            connections = {
                address: opened.enter_context(NativeCalls(address))
                for address in dict.fromkeys(address for address, _ in asked)
            }
            for batch in batches:
                which, keys = (batch.column(name).to_pylist() for name in (EVENT, KEY))
                counts = [
                    sum(
                        count(connections[address], address, topic, *wanted)
                        for address, topic in asked
                    )
                    for wanted in zip(which, keys, strict=True)
                ]
                names = {EVENT: pa.array(which, pa.string()), KEY: pa.array(keys, pa.string())}
                yield pa.record_batch({**names, "pending": pa.array(counts, pa.int64())})

    return search
