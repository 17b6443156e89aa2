"""``df.write`` in ``foreachBatch`` with an app id and a batch id: written once, or an error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def bodies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(TOPIC))


def write(frame: DataFrame, broker: InProcessBroker, batch: object, app_id: str = "app") -> None:
    writer = frame.write.format("escrowmq").mode("append")
    named = {"appId": app_id, "batchId": str(batch)}
    writer.options(broker=broker.broker_address, topic=TOPIC, **named).save()


class Query:
    """A streaming query over a folder of files, one batch each, that writes in foreachBatch."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self._spark = spark
        self._files = folder / f"files-{name}"
        self._files.mkdir()
        self._checkpoint = folder / f"checkpoint-{name}"

    def add(self, *lines: str) -> None:
        number = len(list(self._files.iterdir()))
        draft = self._files.parent / "draft"
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        draft.rename(self._files / f"{number:06}.txt")

    def run(self, handle: Callable[[DataFrame, int], None]) -> None:
        lines = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            lines.load(str(self._files))
            .selectExpr("value AS body")
            .writeStream.foreachBatch(handle)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()


def test_a_new_checkpoint_does_not_lose_its_batches_silently(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """Its batches have the same numbers as the old one's, but other rows."""
    first, second = Query(spark, tmp_path, "first"), Query(spark, tmp_path, "second")
    first.add("a", "b")
    second.add("c")
    first.run(lambda frame, batch: write(frame, broker, batch))
    with pytest.raises(StreamingQueryException, match="batch_decided_by_another_query"):
        second.run(lambda frame, batch: write(frame, broker, batch))
    assert bodies(broker) == Counter("ab")
    assert broker.undecided() == []
    second.run(lambda frame, batch: write(frame, broker, batch, app_id="other"))
    assert bodies(broker) == Counter("abc")


def test_a_new_checkpoint_that_reads_the_same_rows_writes_them_once(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """The rows are in another order and in other partitions."""
    first, second = Query(spark, tmp_path, "first"), Query(spark, tmp_path, "second")
    lines = [str(number) for number in range(20)]
    first.add(*lines)
    second.add(*lines)
    first.run(lambda frame, batch: write(frame, broker, batch))
    second.run(
        lambda frame, batch: write(
            frame.repartition(3).sortWithinPartitions(F.desc("body")), broker, batch
        )
    )
    assert bodies(broker) == Counter(lines)
    assert broker.undecided() == []


def test_a_batch_that_spark_repeats_is_done_whatever_its_rows_are(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """The driver died after the write, and a repetition may have other rows."""
    query = Query(spark, tmp_path, "only")
    query.add("a")

    def write_and_die(frame: DataFrame, batch: int) -> None:
        write(frame, broker, batch)
        raise RuntimeError("planted")

    with pytest.raises(StreamingQueryException, match="planted"):
        query.run(write_and_die)
    query.run(lambda frame, batch: write(frame.selectExpr("'other' AS body"), broker, batch))
    assert bodies(broker) == Counter("a")
    query.add("b")
    query.run(lambda frame, batch: write(frame, broker, batch))
    assert bodies(broker) == Counter("ab")


def test_one_name_for_two_batches_of_a_query_is_refused(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, "only")
    query.add("a")
    query.add("b")
    with pytest.raises(StreamingQueryException, match="batch_decided_by_another_query"):
        query.run(lambda frame, _batch: write(frame, broker, "always"))
    # Either file may come first.
    assert bodies(broker) in (Counter("a"), Counter("b"))


def test_an_empty_batch_is_recorded(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    first, second = Query(spark, tmp_path, "first"), Query(spark, tmp_path, "second")
    first.add("a")
    second.add("a")
    first.run(lambda frame, batch: write(frame.limit(0), broker, batch))
    with NativeCalls(broker.broker_address) as calls:
        rows = list(calls.rows(NativeCode.LIST_BATCHES))
    assert [row.batch_name for row in rows] == ["0"]
    with pytest.raises(StreamingQueryException, match="batch_decided_by_another_query"):
        second.run(lambda frame, batch: write(frame, broker, batch))
    assert bodies(broker) == Counter()


def test_a_plain_write_with_the_name_of_a_stream_s_batch_must_have_its_rows(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, "only")
    query.add("a")
    query.run(lambda frame, batch: write(frame, broker, batch))
    write(spark.createDataFrame([("a",)], "body string"), broker, 0)
    with pytest.raises(PySparkException, match="batch_decided_by_another_query"):
        write(spark.createDataFrame([("b",)], "body string"), broker, 0)
    assert bodies(broker) == Counter("a")
    assert broker.undecided() == []
