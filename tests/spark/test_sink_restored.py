"""A stream into brokers whose home is restored: nothing is doubled, nothing silently skipped."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.streams import TOPIC, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Home:
    """A broker that can be restored to an earlier state."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._backup = folder / "backup"

    @contextmanager
    def started(self, stream: Stream, *others: InProcessBroker) -> Iterator[InProcessBroker]:
        with InProcessBroker(name="home", data=self._data) as home:
            addresses = [broker.broker_address for broker in (home, *others)]
            stream.broker_address = ",".join(addresses)
            yield home

    def back_up(self) -> None:
        shutil.copytree(self._data, self._backup)

    def restore(self) -> None:
        shutil.rmtree(self._data)
        shutil.copytree(self._backup, self._data)


def bodies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(TOPIC))


def test_a_home_that_was_restored_refuses_a_batch_after_a_gap(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It knows batches 0 to 2, one of them empty, and Spark has since written 3 and 4."""
    home, stream = Home(tmp_path), Stream(spark, tmp_path, "")
    with home.started(stream) as broker:
        for lines in (["a"], [], ["b"]):
            stream.add(*lines)
            stream.run()
        with NativeCalls(broker.broker_address) as calls:
            (row,) = calls.rows(NativeCode.LIST_BATCHES)
        assert row.batch_number == 2
    home.back_up()
    with home.started(stream):
        for line in "cd":
            stream.add(line)
            stream.run()
    home.restore()
    with home.started(stream) as broker:
        stream.add("e")
        with pytest.raises(StreamingQueryException, match=r"batches_missing.*last_decided=2"):
            stream.run()
        assert bodies(broker) == Counter("ab")
        assert broker.undecided() == []
        stream.run(app_id="another")
        assert bodies(broker) == Counter("abe")


def test_a_home_that_was_restored_does_not_repeat_what_other_brokers_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark was killed before it knew that the batch was decided, and offers it again."""
    home, stream = Home(tmp_path), Stream(spark, tmp_path, "")
    stream.columns = ("value", "value AS key")
    letters = "abcdefghij"
    with InProcessBroker(name="other") as other:
        with home.started(stream, other):
            stream.add(*letters)
            stream.run()
        home.back_up()
        with home.started(stream, other):
            stream.add(*letters.upper())
            with pytest.raises(StreamingQueryException, match="planted"):
                stream.run(fault="commit.after:raise")
        there = bodies(other)
        assert any(body.isupper() for body in there)
        home.restore()
        with home.started(stream, other) as broker:
            with pytest.raises(StreamingQueryException, match="batch_committed_elsewhere"):
                stream.run()
            assert bodies(other) == there
            assert not any(body.isupper() for body in bodies(broker))
            assert broker.undecided() == other.undecided() == []
