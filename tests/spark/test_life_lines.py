"""The life line of a transaction: what broker, producers and consumers leave in the lake."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.producer.producer import Producer
from escrowmq.model.resolution import Resolution
from escrowmq.pipeline.lake.query import query
from escrowmq.testing import InProcessBroker
from tests.spark.lakeside import Lakeside
from tests.unit.pipeline.conducted import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    """Yield a broker with a topic of one queue, and a lake for everything that it reports."""
    with InProcessBroker() as broker:
        broker.create_topic(TOPIC)
        yield Lakeside(spark, broker, tmp_path)


def summaries(spark: SparkSession, side: Lakeside) -> list[dict[str, Any]]:
    """Return the view's rows, as ``escrowmq lake query`` finds them."""
    found = query(spark, side.lake, "SELECT * FROM transaction_summary ORDER BY head", 100)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def consume(side: Lakeside, group: str, count: int) -> None:
    """Let a group consume this many messages, and commit its offset."""
    consumed = threading.Semaphore(0)
    consumer = Consumer(side.broker.address, group=group)
    consumer.subscribe(TOPIC)(lambda _: consumed.release())
    with consumer:
        for _ in range(count):
            assert consumed.acquire(timeout=DEADLINE_S)


def test_a_transaction_is_told_from_its_half_message_to_its_consumers(
    spark: SparkSession, side: Lakeside
) -> None:
    answers = [Resolution.UNKNOWN, Resolution.COMMIT]
    broker = side.broker
    with Producer(broker.address, group="shop", checker=lambda _: answers.pop(0)) as producer:
        producer.send_half(TOPIC, b"asked about")
        rolled_back = producer.send_half(TOPIC, b"rolled back")
        producer.end(rolled_back, Resolution.ROLLBACK)
        held_at_ms = broker.clock.now_ms()
        while answers:
            broker.advance(seconds=120)
            broker.run_checks()
    decided_at_ms = broker.clock.now_ms()
    side.archive()
    first, second = summaries(spark, side)
    assert (first["state"], second["state"]) == ("committed", "rolled_back")
    assert first["producer_group"] == "shop"
    assert first["held_at_ms"] == held_at_ms
    assert (first["checks_asked"], first["asked_at_ms"]) == (2, decided_at_ms)
    assert (first["checks_answered"], first["answered_at_ms"]) == (1, decided_at_ms - 120_000)
    assert first["decided_by"]
    assert first["decided_at_ms"] == first["visible_at_ms"] == decided_at_ms
    assert (first["consumed_at_ms"], first["consumed_by"]) == (None, None)
    assert (second["visible_at_ms"], second["consumed_by"]) == (None, None)

    broker.advance(seconds=5)
    consume(side, "billing", 1)
    assert side.archive().rows["progress"] >= 1
    seen_at_ms = broker.clock.now_ms()
    assert summaries(spark, side)[0]["consumed_by"] == f"billing {seen_at_ms}"
    # A fact that was archived once is not archived again, even by a new driver.
    broker.advance(seconds=5)
    assert side.archive().rows == {}


def test_messages_of_a_spark_sink_have_a_life_line_too(spark: SparkSession, side: Lakeside) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) AS body")
    writer = frame.write.format("escrowmq").mode("append")
    writer.options(broker=side.broker.broker_address, topic=TOPIC).save()
    consume(side, "billing", 10)
    side.archive()
    found = summaries(spark, side)
    assert sum(one["message_count"] for one in found) == 10
    for one in found:
        assert one["state"] == "committed"
        assert one["visible_at_ms"] == one["decided_at_ms"]
        assert one["consumed_by"].startswith("billing ")
