"""Streams into ``format("escrowmq")``: every batch once, whatever stops the query."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.sink_attempt import RUN_CHARS, parse_attempt
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.streams import TOPIC, Stream
from tests.unit.pipeline.losing import LosingProxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def stream(spark: SparkSession, broker: InProcessBroker, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path, broker.broker_address)


def bodies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(TOPIC))


def test_every_batch_is_written_once_over_several_runs(
    stream: Stream, broker: InProcessBroker
) -> None:
    stream.add("a", "b")
    stream.add("c")
    stream.run()
    assert bodies(broker) == Counter("abc")
    stream.add("d")
    stream.run()
    assert bodies(broker) == Counter("abcd")
    assert broker.undecided() == []
    with NativeCalls(broker.broker_address) as calls:
        (batch,) = calls.rows(NativeCode.LIST_BATCHES)
    assert (batch.app_id, batch.batch_number) == ("app", 2)


def test_a_batch_without_rows_is_decided_too(stream: Stream, broker: InProcessBroker) -> None:
    stream.add()
    stream.run()
    assert bodies(broker) == Counter()
    with NativeCalls(broker.broker_address) as calls:
        assert [batch.batch_number for batch in calls.rows(NativeCode.LIST_BATCHES)] == [0]


def test_spark_tells_tasks_their_query_batch_and_run(
    stream: Stream, broker: InProcessBroker
) -> None:
    """The names are undocumented, so another version of Spark may change them."""
    stream.add("a")
    stream.run()
    stream.add("b")
    with pytest.raises(StreamingQueryException) as stopped:
        stream.run(fault="write.after:raise")
    query_id = (stream.checkpoint / "metadata").read_text(encoding="utf-8").split('"')[3]
    attempts = [parse_attempt(half.group, half.transaction_id) for half in broker.undecided()]
    assert len(attempts) == 2
    for attempt in attempts:
        assert attempt is not None
        assert (attempt.run.query_id, attempt.batch) == (query_id, 1)
        assert len(attempt.run.run) == RUN_CHARS
        assert f"runId = {attempt.run.run}" in str(stopped.value)


@pytest.mark.parametrize(
    "fault", ["write.rows:raise", "write.after:raise", "commit.before:raise", "commit.after:raise"]
)
def test_a_batch_that_failed_is_written_once_by_the_next_run(
    stream: Stream, broker: InProcessBroker, fault: str
) -> None:
    stream.add("a")
    with pytest.raises(StreamingQueryException, match="planted at"):
        stream.run(fault=fault)
    assert bodies(broker) == (Counter("a") if fault.startswith("commit.after") else Counter())
    stream.add("b")
    stream.run()
    assert bodies(broker) == Counter("ab")


def test_every_answer_may_get_lost_once(stream: Stream, broker: InProcessBroker) -> None:
    stream.add("a", "b")
    stream.add("c")
    with LosingProxy(broker.broker_address, lambda _, number: number % 2 == 0) as way:
        stream.broker_address = way.address
        stream.run()
    assert bodies(broker) == Counter("abc")
    assert broker.undecided() == []


def test_a_query_whose_checkpoint_was_deleted_is_refused(
    stream: Stream, broker: InProcessBroker
) -> None:
    stream.add("a")
    stream.run()
    shutil.rmtree(stream.checkpoint)
    with pytest.raises(
        StreamingQueryException,
        match=r"batch_decided_by_another_query: give this query its own app id, or restore"
        r" its checkpoint",
    ):
        stream.run()
    assert bodies(broker) == Counter("a")
    assert broker.undecided() == []


def test_a_second_query_with_the_same_app_id_is_refused(
    stream: Stream, broker: InProcessBroker, spark: SparkSession, tmp_path: Path
) -> None:
    stream.add("a")
    stream.run()
    other = Stream(spark, tmp_path / "other", broker.broker_address)
    other.add("x")
    with pytest.raises(StreamingQueryException, match="batch_decided_by_another_query"):
        other.run()
    other.run(app_id="other")
    assert bodies(broker) == Counter("ax")


def test_a_stream_needs_an_app_id(stream: Stream) -> None:
    stream.add("a")
    with pytest.raises(Exception, match=r"bad_option: .*appId"):
        stream.run(app_id="")
