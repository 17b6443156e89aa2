"""Messages as DataFrames: only committed ones."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from escrowmq.pipeline.source.batch import MessageReader, schema
from escrowmq.pipeline.source.message_columns import EXTRA, TYPES
from escrowmq.pipeline.source.message_options import batch_options
from escrowmq.testing import InProcessBroker
from tests.spark.topics import BORN_AT_MS, bodies, collected, decide, hold, read, row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    """Yield ten messages in each of two queues, half of them transactional, and hidden ones."""
    with InProcessBroker(queue_count=2) as broker:
        for number in range(5):
            for queue_id in range(2):
                send(broker, row(b"%d plain %d" % (queue_id, number), queue_id=queue_id, TAGS="p"))
                held = row(
                    b"%d held %d" % (queue_id, number), queue_id=queue_id, KEYS=f"k{number} x"
                )
                decide(broker, hold(broker, f"t{queue_id}{number}", held))
            broker.advance(seconds=1)
        hold(broker, "undecided", row(b"undecided"))
        decide(broker, hold(broker, "rolled back", row(b"rolled back")), "rollback")
        send(broker, row(b"elsewhere", topic="payments"))
        yield broker


def test_messages_come_with_all_that_is_known_of_them(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = read(spark, broker, topic="orders", includeProperties="true")
    assert frame.columns == [name for name in TYPES if name not in EXTRA or name == "properties"]
    one = frame.where("unique_key is not null and queue_id = 1 and queue_offset = 3").collect()[0]
    now_ms = broker.clock.now_ms()
    told = one.asDict()
    properties = told.pop("properties")
    assert told == {
        "broker": "broker-a",
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": 3,
        "log_offset": one.log_offset,
        "message_id": one.message_id,
        "unique_key": one.unique_key,
        "keys": "k1 x",
        "tags": None,
        "body": b"1 held 1",
        "flag": 7,
        "sys_flag": 8,
        "born_at": collected(BORN_AT_MS),
        "stored_at": collected(now_ms - 4_000),
        "visible_at": collected(now_ms - 4_000),
        "reconsume_times": 0,
        "transaction_id": "t11",
        "problem": None,
    }
    assert properties["KEYS"] == "k1 x"
    assert properties["__transactionId__"] == "t11"


def test_only_committed_messages_are_read(spark: SparkSession, broker: InProcessBroker) -> None:
    found = bodies(read(spark, broker))
    assert found == [
        b"%d %b %d" % (queue_id, kind, number)
        for queue_id in range(2)
        for number in range(5)
        for kind in (b"plain", b"held")
    ]


def test_several_topics_and_patterns_are_read(spark: SparkSession, broker: InProcessBroker) -> None:
    def topics(**options: str) -> set[str]:
        frame = read(spark, broker, **options).select("topic").distinct()
        return {one.topic for one in frame.collect()}

    assert topics(topic="orders, payments") == {"orders", "payments"}
    assert topics(topic="", topicPattern="pay.*") == {"payments"}
    # Neither system topics nor topics of groups.
    assert topics(topic="", topicPattern=".*") == {"orders", "payments"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"orders": {"0": 8, "1": -1}}'}, [(0, 8), (0, 9)]),
        ({"endingOffsets": '{"broker-a": {"orders": {"0": 1, "1": -2}}}'}, [(0, 0)]),
        (
            {
                "startingOffsets": '{"orders": {"0": 3}}',
                "endingOffsets": '{"orders": {"0": 5, "1": 1}}',
            },
            [(0, 3), (0, 4), (1, 0)],
        ),
    ],
)
def test_offsets_begin_and_end_a_read(
    spark: SparkSession,
    broker: InProcessBroker,
    options: dict[str, str],
    expected: list[tuple[int, int]],
) -> None:
    rows = read(spark, broker, columns="queue_id,queue_offset", **options).collect()
    assert sorted(map(tuple, rows)) == expected


def test_times_begin_and_end_a_read(spark: SparkSession, broker: InProcessBroker) -> None:
    from datetime import UTC, datetime

    now_ms = broker.clock.now_ms()
    until = datetime.fromtimestamp((now_ms - 2_000) / 1_000, UTC).isoformat()
    frame = read(spark, broker, startingTimestamp=str(now_ms - 4_000), endingTimestamp=until)
    assert {one.queue_offset for one in frame.collect()} == {2, 3, 4, 5}


def test_tags_and_keys_filter(spark: SparkSession, broker: InProcessBroker) -> None:
    assert read(spark, broker, tags="p || q", columns="body").count() == 10
    # "Aa" and "BB" have the same hash code in Java.
    send(broker, row(b"", topic="twins", TAGS="Aa"), row(b"", topic="twins", TAGS="BB"))
    assert [one.tags for one in read(spark, broker, topic="twins", tags="BB").collect()] == ["BB"]
    by_key = read(spark, broker, keys="k1,k3", columns="keys").collect()
    assert sorted(one["keys"] for one in by_key) == ["k1 x", "k1 x", "k3 x", "k3 x"]
    unique = read(spark, broker).where("queue_id = 0 and queue_offset = 1").collect()[0].unique_key
    assert bodies(read(spark, broker, keys=unique)) == [b"0 held 0"]


def test_a_narrow_schema_is_honoured(spark: SparkSession, broker: InProcessBroker) -> None:
    schema = "queue_offset bigint, body binary"
    reader = spark.read.schema(schema).format("escrowmq").option("topic", "payments")
    rows = reader.option("broker", broker.broker_address).load().collect()
    assert [one.asDict() for one in rows] == [{"queue_offset": 0, "body": b"elsewhere"}]


def test_a_read_is_cut_into_tasks(spark: SparkSession, broker: InProcessBroker) -> None:
    whole = read(spark, broker)
    cut = read(spark, broker, maxRowsPerPartition="7")
    assert (whole.rdd.getNumPartitions(), cut.rdd.getNumPartitions()) == (1, 3)
    assert bodies(cut) == bodies(whole)


def test_a_task_reads_its_queues_in_turn_and_each_in_its_order(broker: InProcessBroker) -> None:
    given = {"broker": broker.broker_address, "topic": "orders", "maxRowsPerPartition": "10"}
    given["columns"] = "queue_id,queue_offset"
    task = MessageReader(batch_options(given), schema(given))
    rows = [
        [list(one.values()) for batch in task.read(part) for one in batch.to_pylist()]
        for part in task.partitions()
    ]
    assert rows == [
        [[queue_id, offset] for queue_id in range(2) for offset in range(start, start + 5)]
        for start in (0, 5)
    ]


def test_an_odd_message_comes_with_its_problem(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    good = row(zlib.compress(b"good"), topic="odd")
    bad = row(b"not compressed", topic="odd")
    send(broker, *(msgspec.structs.replace(one, sys_flag=1) for one in (good, bad)))
    rows = read(spark, broker, topic="odd").orderBy("queue_offset").collect()
    assert [(bytes(one.body), one.problem) for one in rows] == [
        (b"good", None),
        (b"not compressed", "undecodable_body"),
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": "nothing"}, "topic_unknown"),
        ({"startingOffsets": "soon"}, "earliest, latest, or JSON"),
        ({"broker": "127.0.0.1:1", "retryMs": "0"}, "broker_unreachable"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, broker: InProcessBroker, options: dict[str, str | None], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        read(spark, broker, **options).collect()


def test_a_schema_of_others_is_refused(spark: SparkSession, broker: InProcessBroker) -> None:
    reader = spark.read.schema("body string").format("escrowmq").option("topic", "orders")
    with pytest.raises(Exception, match="body string"):
        reader.option("broker", broker.broker_address).load().collect()


def test_offsets_that_are_not_there_are_an_error(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    beyond = json.dumps({"orders": {"0": 9, "1": 0}})
    with pytest.raises(Exception, match=r"data_lost.*failOnDataLoss"):
        read(spark, broker, endingOffsets=json.dumps({"orders": {"0": 99}})).collect()
    frame = read(spark, broker, startingOffsets=beyond, failOnDataLoss="false")
    assert frame.count() == 11
