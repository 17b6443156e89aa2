"""Reading topics on two hosts, one of which dies in the middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812

from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import Cluster
from tests.cluster.deadly import DeadlyWay
from tests.spark.settled import rolled_back
from tests.spark.topics import hold, row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 4_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        fill(broker, 0, COUNT)
        # An undecided message stays invisible, whatever happens.
        hold(broker, "undecided", row(b"undecided"))
        yield broker


def fill(broker: InProcessBroker, start: int, end: int) -> None:
    send(broker, *(row(b"%d" % number, queue_id=number % 2) for number in range(start, end)))


def each_once(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


@pytest.mark.slice
def test_a_host_dies_while_a_topic_is_read(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster
) -> None:
    with DeadlyWay(broker.broker_address, cluster, NativeCode.READ_STORED, nth=2) as way:
        options = {"broker": way.address, "topic": "orders", "maxRowsPerPartition": "500"}
        messages = spark.read.format("escrowmq").options(**options).load()
        # A shuffle: the dead host's output for other tasks is lost, too.
        bodies = messages.select(F.col("body").cast("string")).groupBy("body").count()
        found = {row["body"]: row["count"] for row in bodies.collect()}
        assert way.victim
    assert found == each_once(COUNT)


class Copy:
    """A stream that copies one topic into another."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = str(checkpoint)

    def run(self, address: str) -> None:
        limits = {"maxRowsPerBatch": "2000", "maxRowsPerPartition": "500"}
        source = self._spark.readStream.format("escrowmq").options(topic="orders", **limits)
        query = (
            source.option("broker", address)
            .load()
            .select("body")
            .writeStream.format("escrowmq")
            .options(broker=address, topic="copies", appId="copy")
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def copies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages("copies"))


@pytest.mark.parametrize("fatal", [NativeCode.READ_STORED, NativeCode.HOLD_HALVES])
def test_a_host_dies_while_a_topic_is_copied(
    spark: SparkSession,
    broker: InProcessBroker,
    cluster: Cluster,
    tmp_path: Path,
    fatal: NativeCode,
) -> None:
    """The host dies in the second batch of a stream."""
    copy = Copy(spark, tmp_path / "checkpoint")
    with DeadlyWay(broker.broker_address, cluster, fatal, nth=3) as way:
        copy.run(way.address)
        assert way.victim
    assert copies(broker) == each_once(COUNT)
    fill(broker, COUNT, COUNT + 100)
    copy.run(broker.broker_address)
    rolled_back(spark, broker.broker_address)
    assert copies(broker) == each_once(COUNT + 100)
    assert [half.group for half in broker.undecided()] == ["shop"]
