"""Streams on Spark 4.0 and 4.1, which pass no start, limit or trigger, and write rows.

These tests run on every version, through the same classes (``old_api.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from escrowmq.pipeline.source.position_keeping import WRAPPER
from escrowmq.testing import InProcessBroker
from tests.spark.old_api import FORMAT, OldApi
from tests.spark.topics import row, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LIMITED = {"maxRowsPerBatch": "4", "availableNow": "false"}


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as broker:
        broker.create_topic("orders", queues=1)
        yield broker


class Query:
    """A query over one checkpoint, which remembers its batches."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, checkpoint: Path) -> None:
        spark.dataSource.register(OldApi)
        self._spark = spark
        self._broker = broker
        self.checkpoint = checkpoint
        self.batches: list[list[bytes]] = []

    def start(self, options: dict[str, str], *, is_available_now: bool) -> StreamingQuery:
        given = {"broker": self._broker.broker_address, "topic": "orders", **options}
        frame = self._spark.readStream.format(FORMAT).options(**given).load()
        writer = frame.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if is_available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    def follow(self, **options: str) -> list[list[bytes]]:
        """Run with the default trigger up to the current end; return the batches."""
        first = len(self.batches)
        query = self.start(options, is_available_now=False)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return [batch for batch in self.batches[first:] if batch]

    def run(self, **options: str) -> list[list[bytes]]:
        """Run with ``availableNow``; return the batches."""
        first = len(self.batches)
        self.start(options, is_available_now=True).awaitTermination()
        return [batch for batch in self.batches[first:] if batch]

    def _keep(self, batch: DataFrame, _number: int) -> None:
        self.batches.append([bytes(one["body"]) for one in batch.select("body").collect()])


@pytest.fixture
def query(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> Query:
    return Query(spark, broker, tmp_path / "checkpoint")


def fill(broker: InProcessBroker, *numbers: int) -> None:
    send(broker, *(row(b"%d" % number) for number in numbers))


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_limit_is_kept_by_new_and_by_restarted_queries(
    broker: InProcessBroker, query: Query
) -> None:
    fill(broker, *range(10))
    assert query.follow(**LIMITED) == [bodies(0, 1, 2, 3), bodies(4, 5, 6, 7), bodies(8, 9)]
    assert query.follow(**LIMITED) == []
    fill(broker, *range(10, 16))
    assert query.follow(**LIMITED) == [bodies(10, 11, 12, 13), bodies(14, 15)]


def test_available_now_reads_what_is_there_in_one_batch(
    broker: InProcessBroker, query: Query
) -> None:
    fill(broker, *range(6))
    assert query.run() == [bodies(*range(6))]
    assert query.run() == []
    fill(broker, 6)
    assert query.run(maxRowsPerBatch="4", availableNow="true") == [bodies(6)]


def test_a_batch_that_was_not_committed_is_repeated_with_the_same_rows(
    broker: InProcessBroker, query: Query
) -> None:
    fill(broker, *range(3))
    assert query.run() == [bodies(0, 1, 2)]
    for file in (query.checkpoint / "commits").iterdir():
        file.unlink()
    fill(broker, 3)
    assert query.follow(**LIMITED) == [bodies(0, 1, 2), bodies(3)]


def test_a_limit_needs_to_know_the_trigger(query: Query) -> None:
    with pytest.raises(StreamingQueryException, match=r"bad_option.*maxRowsPerBatch.*availableNow"):
        query.run(maxRowsPerBatch="4")


@pytest.fixture
def wrapper(spark: SparkSession) -> Iterator[None]:
    """Make Spark ask for the end before it passes the query's position."""
    spark.conf.set(WRAPPER, "true")
    yield
    spark.conf.unset(WRAPPER)


@pytest.mark.usefixtures("wrapper")
def test_a_query_that_is_asked_for_its_end_first_reads_each_message_once(
    broker: InProcessBroker, query: Query
) -> None:
    fill(broker, *range(6))
    assert query.run() == [bodies(*range(6))]
    fill(broker, 6, 7)
    assert query.run() == [bodies(6, 7)]
    with pytest.raises(StreamingQueryException, match=r"bad_option.*availableNow"):
        query.run(**LIMITED)


def test_rows_of_every_column_are_written(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    spark.dataSource.register(OldApi)
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    events = numbers.selectExpr(
        "if(value = 1, unhex('00ff'), cast(cast(value AS string) AS binary)) AS body",
        "concat('key', value) AS key",
        "if(value = 2, null, array('a', 'b')) AS keys",
        "if(value = 2, null, map('color', 'red')) AS properties",
        "0 AS queue_id",
        "1700000000000 + value AS born_at_ms",
    )
    given = {"broker": broker.broker_address, "topic": "orders", "appId": "rows"}
    query = (
        events.writeStream.format(FORMAT)
        .options(**given)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        while not (query.lastProgress or query.exception()):
            query.awaitTermination(1)
    finally:
        query.stop()
    sent = sorted(broker.messages("orders"), key=lambda message: message.born_at_ms)[:3]
    assert [one.body for one in sent] == [b"0", b"\x00\xff", b"2"]
    assert [one.properties.get("color") for one in sent] == ["red", "red", None]
    assert [one.born_at_ms - 1_700_000_000_000 for one in sent] == [0, 1, 2]
