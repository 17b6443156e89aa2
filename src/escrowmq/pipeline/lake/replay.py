"""Publishes messages of the lake again, each once for each replay id.

All messages become visible at once, or none. The broker knows that a replay is done as long as its
log holds it, and the lake knows it forever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.marks import once
from escrowmq.pipeline.lake.tables import DATE, MESSAGES
from escrowmq.protocol.message import properties as wire
from escrowmq.protocol.native.headers import ListBatchesHeader
from escrowmq.protocol.native.requests import NativeCode

APP_ID = "lake-replay"

#: Properties of the original send, which the new send sets itself.
LEFT_OUT = (*wire.SET_BY_PRODUCERS, *wire.SET_BY_BROKERS)
#: The origin of a message as properties, by the lake's column.
ORIGIN = {
    "REPLAYED_BROKER": "broker",
    "REPLAYED_TOPIC": "topic",
    "REPLAYED_QUEUE_ID": "queue_id",
    "REPLAYED_QUEUE_OFFSET": "queue_offset",
    "REPLAYED_MESSAGE_ID": "message_id",
    "REPLAYED_UNIQUE_KEY": "unique_key",
    "REPLAYED_TRANSACTION_ID": "transaction_id",
}
REPLAY_ID = "REPLAY_ID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Which messages to publish again, and where."""

    topic: str
    #: When the messages became visible: ``[from, to)``.
    from_ms: int
    to_ms: int
    into: str
    #: One broker's address.
    broker: str
    #: Empty means a hash of the other fields, so the same order twice is one replay.
    replay_id: str

    @property
    def name(self) -> str:
        """The replay's id."""
        facts = "\n".join((self.topic, str(self.from_ms), str(self.to_ms), self.into))
        return self.replay_id or hashlib.sha256(facts.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Result of a replay."""

    replay_id: str
    #: The number of messages published now.
    messages: int
    #: Whether the replay was done before, so that nothing was published now.
    is_repeated: bool


def replay(spark: SparkSession, lake: Lake, order: Replay) -> Replayed:
    """Publish the messages, unless that was done before. Runs on the driver.

    Raises:
        RequestRefused: ``topic_unknown``, ``bad_option``, or any refusal of the sink.
    """
    _check(order)
    if _is_done(lake, order):
        return Replayed(replay_id=order.name, messages=0, is_repeated=True)
    archived = _chosen(lake.read(spark, MESSAGES), order)
    count = archived.count()
    if not count:
        return Replayed(replay_id=order.name, messages=0, is_repeated=False)
    messages = _as_sent(archived, order.name, _queue_count(order))
    writer = messages.write.format("escrowmq").mode("append").option("broker", order.broker)
    writer.options(topic=order.into, appId=APP_ID, batchId=order.name).save()
    # If two replays race, the broker takes only one. The first marker in the lake wins.
    is_first = lake.commit(MESSAGES, (), once(_marker(order), 0))
    return Replayed(
        replay_id=order.name, messages=count if is_first else 0, is_repeated=not is_first
    )


def planned(spark: SparkSession, lake: Lake, order: Replay) -> Replayed:
    """What a replay would do. Changes nothing."""
    _check(order)
    _queue_count(order)
    if _is_marked(lake, order) or _is_decided(order):
        return Replayed(replay_id=order.name, messages=0, is_repeated=True)
    chosen = _chosen(lake.read(spark, MESSAGES), order)
    return Replayed(replay_id=order.name, messages=chosen.count(), is_repeated=False)


def _check(order: Replay) -> None:
    if order.from_ms >= order.to_ms:
        raise RequestRefused("bad_option", "must be later than --from", option="--to")


def _is_marked(lake: Lake, order: Replay) -> bool:
    found = lake.find(MESSAGES)
    return found is not None and found.transaction_version(_marker(order)) is not None


def _is_decided(order: Replay) -> bool:
    with NativeCalls(order.broker) as calls:
        decided = calls.rows(NativeCode.LIST_BATCHES, ListBatchesHeader(app_id=APP_ID))
        return any(row.batch_name == order.name for row in decided)


def _is_done(lake: Lake, order: Replay) -> bool:
    if _is_marked(lake, order):
        return True
    is_decided = _is_decided(order)
    if is_decided:
        # An earlier run published the messages and was killed before it wrote its marker. The
        # broker forgets the decision after its retention; the lake keeps the marker.
        lake.commit(MESSAGES, (), once(_marker(order), 0))
    return is_decided


def _marker(order: Replay) -> str:
    return f"escrowmq/replay/{order.name}"


def _queue_count(order: Replay) -> int:
    with NativeCalls(order.broker) as calls:
        for row in calls.rows(NativeCode.LIST_TOPICS):
            if row.topic == order.into:
                return int(row.write_queue_count)
    raise RequestRefused("topic_unknown", "create the topic first", topic=order.into)


def _chosen(messages: DataFrame, order: Replay) -> DataFrame:
    days = [datetime.fromtimestamp(ms / 1_000, UTC).date() for ms in (order.from_ms, order.to_ms)]
    visible_at = F.col("visible_at_ms")
    is_in_time = (visible_at >= order.from_ms) & (visible_at < order.to_ms)
    # The filter on the day lets Spark skip the directories of other days.
    return messages.where((F.col("topic") == order.topic) & F.col(DATE).between(*days) & is_in_time)


def _as_sent(archived: DataFrame, replay_id: str, queue_count: int) -> DataFrame:
    """Messages for the sink. Messages of one queue stay in one queue, in order."""

    def is_kept(name: Column, _value: Column) -> Column:
        return ~name.isin(*LEFT_OUT, REPLAY_ID, *ORIGIN)

    def has_value(_name: Column, value: Column) -> Column:
        return value.isNotNull() & (value != "")

    kept = F.map_filter(F.coalesce("properties", F.create_map()), is_kept)
    facts = [(F.lit(name), F.col(column).cast("string")) for name, column in ORIGIN.items()]
    origin = F.create_map(
        F.lit(REPLAY_ID), F.lit(replay_id), *(one for pair in facts for one in pair)
    )
    properties = F.map_filter(F.map_concat(kept, origin), has_value)
    tasks = archived.sparkSession.sparkContext.defaultParallelism
    return (
        archived.repartition(tasks, "broker", "queue_id")
        .sortWithinPartitions("broker", "queue_id", "queue_offset")
        .select(
            "body",
            "keys",
            "tags",
            properties.alias("properties"),
            (F.col("queue_id") % queue_count).alias("queue_id"),
            "born_at_ms",
        )
    )
