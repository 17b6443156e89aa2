"""The sink over hours and days, with a broker clock that tests move by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.config import StoreConfig
from escrowmq.testing import InProcessBroker
from tests.spark.settled import rolled_back
from tests.spark.streams import TOPIC, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_S = 3_600


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    # Small segments, because retention deletes whole segments.
    with InProcessBroker(store=StoreConfig(segment_bytes_max=4_096)) as broker:
        yield broker


def bodies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(TOPIC))


def test_a_job_of_three_hours_commits_what_it_held_at_first(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, broker.broker_address)
    stream.add(*range(20))
    go_on = tmp_path / "go-on"
    query = stream.start(fault="write.after:hang", until=str(go_on))
    try:
        while not broker.undecided():
            assert query.exception() is None
        for _ in range(2):
            broker.advance(seconds=3 * HOUR_S // 2)
            assert rolled_back(spark, broker.broker_address) == 0
    finally:
        go_on.touch()
        query.awaitTermination()
    assert bodies(broker) == Counter(str(number) for number in range(20))
    assert broker.undecided() == []


def test_an_abandoned_batch_is_rolled_back_after_a_day(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, broker.broker_address)
    stream.add("a")
    with pytest.raises(StreamingQueryException):
        stream.run(fault="write.after:raise")
    assert len(broker.undecided()) == 2
    assert rolled_back(spark, broker.broker_address) == 0
    broker.advance(seconds=24 * HOUR_S)
    assert rolled_back(spark, broker.broker_address) == 2
    stream.run()
    assert bodies(broker) == Counter("a")
    assert broker.undecided() == []


def test_the_next_run_shows_that_what_the_last_one_left_is_not_wanted(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, broker.broker_address)
    stream.add("a")
    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            stream.run(fault="write.after:raise")
    assert rolled_back(spark, broker.broker_address) == 2
    stream.run()
    assert rolled_back(spark, broker.broker_address) == 2
    assert bodies(broker) == Counter("a")
    assert broker.undecided() == []


def test_a_driver_whose_clock_was_set_back_keeps_its_attempts(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """The second run is the later one, whatever its driver's clock says."""
    stream = Stream(spark, tmp_path, broker.broker_address)
    stream.add("a")
    with pytest.raises(StreamingQueryException):
        stream.run(fault="write.after:raise")
    left_behind = len(broker.undecided())
    go_on = tmp_path / "go-on"
    query = stream.start(
        fault="write.after:hang", until=str(go_on), clockBackS=str(HOUR_S), rowsMax="1"
    )
    try:
        while len(broker.undecided()) == left_behind:
            assert query.exception() is None
        assert rolled_back(spark, broker.broker_address) == left_behind
    finally:
        go_on.touch()
        query.awaitTermination()
    assert bodies(broker) == Counter("a")
    assert broker.undecided() == []


def test_a_batch_is_not_written_again_when_the_log_has_forgotten_it(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """The batch is decided, but Spark does not know; then the stream pauses beyond retention."""
    stream = Stream(spark, tmp_path, broker.broker_address)
    stream.add("a")
    stream.run()
    stream.add("b")
    with pytest.raises(StreamingQueryException):
        stream.run(fault="commit.after:raise")
    assert bodies(broker) == Counter("ab")

    with NativeCalls(broker.broker_address) as calls:
        log_end = calls.call(NativeCode.STATUS).header.log_end
    broker.advance(seconds=100 * HOUR_S)
    # Another write must follow, because retention keeps the last segment.
    other = Stream(spark, tmp_path / "other", broker.broker_address)
    other.add("x" * 4_096)
    other.run(app_id="other")
    broker.advance(seconds=100 * HOUR_S)
    broker.restart()
    with NativeCalls(broker.broker_address) as calls:
        assert calls.call(NativeCode.STATUS).header.log_start >= log_end
    assert bodies(broker)["b"] == 0

    stream.add("c")
    stream.run()
    assert {body for body in bodies(broker) if len(body) == 1} == {"c"}
    assert broker.undecided() == []
