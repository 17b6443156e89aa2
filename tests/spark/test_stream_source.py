"""Messages as a stream: each once, from the checkpoint's position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.pipeline.source.message_columns import spark_schema
from escrowmq.pipeline.source.message_options import stream_options
from escrowmq.pipeline.source.positions import places
from escrowmq.pipeline.source.stream import MessageStreamReader
from escrowmq.pipeline.spark_api import ReadAllAvailable
from escrowmq.testing import InProcessBroker
from tests.spark.topics import decide, hold, needs_read_limits, row, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """Yield an empty broker with topics of two queues."""
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield broker


class Stream:
    """A query that can run repeatedly up to the current end, and remembers its batches."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, checkpoint: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._checkpoint = str(checkpoint)
        #: The bodies of each batch, sorted.
        self.batches: list[list[bytes]] = []

    def run(self, **options: Any) -> list[bytes]:  # noqa: ANN401 - options
        """Read everything available now; return the new bodies."""
        given = {"broker": self._broker.broker_address, "topic": "orders", **options}
        first = len(self.batches)
        query = (
            self._spark.readStream.format("escrowmq")
            .options(**given)
            .load()
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return sorted(body for batch in self.batches[first:] for body in batch)

    def _keep(self, batch: DataFrame, _number: int) -> None:
        self.batches.append(sorted(bytes(one["body"]) for one in batch.select("body").collect()))


@pytest.fixture
def stream(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> Stream:
    return Stream(spark, broker, tmp_path / "checkpoint")


def fill(broker: InProcessBroker, *bodies: bytes, queue_id: int = 0, topic: str = "orders") -> None:
    send(broker, *(row(body, queue_id=queue_id, topic=topic) for body in bodies))


def test_each_message_comes_once_across_restarts_of_both(
    broker: InProcessBroker, stream: Stream
) -> None:
    fill(broker, b"a", b"b")
    undecided = hold(broker, "t", row(b"d", queue_id=1))
    assert stream.run() == [b"a", b"b"]
    assert stream.run() == []
    broker.restart()
    decide(broker, undecided)
    fill(broker, b"c")
    assert stream.run() == [b"c", b"d"]


@needs_read_limits
def test_a_batch_has_no_more_rows_than_allowed(broker: InProcessBroker, stream: Stream) -> None:
    fill(broker, *(b"%d" % number for number in range(9)))
    fill(broker, b"z", queue_id=1)
    found = stream.run(maxRowsPerBatch="4")
    assert len(found) == 10
    assert [len(batch) for batch in stream.batches] == [4, 4, 2]


def test_queues_and_topics_that_come_later_are_read(
    broker: InProcessBroker, stream: Stream
) -> None:
    options = {"topic": "", "topicPattern": "or.*"}
    fill(broker, b"a")
    assert stream.run(**options) == [b"a"]
    broker.create_topic("orders", queues=4)
    fill(broker, b"b", queue_id=3)
    fill(broker, b"c", topic="orchids")
    assert stream.run(**options) == [b"b", b"c"]


def test_a_topic_that_appears_before_the_first_offset_is_not_lost(broker: InProcessBroker) -> None:
    """Spark notes the ends first, and asks for the initial offset afterwards."""

    def reader() -> MessageStreamReader:
        options = {"broker": broker.broker_address, "topicPattern": "orders|later"}
        return MessageStreamReader(stream_options(options), spark_schema(("queue_offset", "body")))

    fill(broker, b"a", b"b")
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    fill(broker, b"c", topic="later")
    start = stream.initialOffset()
    assert places(start)["broker-a"]["later"]["0"] == 0
    end = stream.latestOffset(start, ReadAllAvailable())
    at = places(end)["broker-a"]
    assert (at["orders"]["0"], at["later"]["0"]) == (2, 0)
    # The next run reads the message.
    later = reader().latestOffset(end, ReadAllAvailable())
    assert places(later)["broker-a"]["later"]["0"] == 1


def test_latest_begins_with_what_comes(broker: InProcessBroker, stream: Stream) -> None:
    fill(broker, b"old")
    assert stream.run(startingOffsets="latest") == []
    fill(broker, b"new")
    assert stream.run(startingOffsets="latest") == [b"new"]


def test_a_store_that_was_made_anew_is_data_lost(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    first = Stream(spark, broker, tmp_path / "checkpoint")
    fill(broker, b"a", b"b")
    assert first.run() == [b"a", b"b"]
    with InProcessBroker(queue_count=2) as anew:
        fill(anew, b"c")
        again = Stream(spark, anew, tmp_path / "checkpoint")
        with pytest.raises(Exception, match=r"data_lost.*failOnDataLoss") as raised:
            again.run()
        assert "'orders'" in str(raised.value)
        assert again.run(failOnDataLoss="false") == [b"c"]
