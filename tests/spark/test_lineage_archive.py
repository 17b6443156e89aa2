"""A restored broker: the lake has each message of its new history once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.archive.messages import MessageStream
from escrowmq.pipeline.lake.tables import MESSAGES, TRANSACTIONS
from escrowmq.testing import InProcessBroker
from tests.spark.lakeside import Lakeside
from tests.spark.topics import decide, hold, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data: Path) -> Iterator[InProcessBroker]:
    with InProcessBroker(data=data, queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield broker


def copy(data: Path, to: Path) -> None:
    """Copy the directory, as a file copy or a disk snapshot would."""
    shutil.copytree(data, to)
    (to / "lock").unlink(missing_ok=True)


def restore(broker: InProcessBroker, copied: Path, data: Path) -> None:
    broker.stop()
    shutil.rmtree(data)
    shutil.copytree(copied, data)
    broker.start()


def test_a_restore_neither_doubles_the_lake_nor_leaves_a_gap_in_it(
    spark: SparkSession, broker: InProcessBroker, data: Path, tmp_path: Path
) -> None:
    side = Lakeside(spark, broker, tmp_path, [MessageStream])
    side.send(b"a", b"b")
    side.send(b"q1-a", queue_id=1)
    side.archive()
    side.send(b"c")
    copy(data, tmp_path / "copy")
    # Offsets 3 and 4 of queue 0, 1 and 2 of queue 1, and a topic that the copy lacks.
    side.send(b"old-d", b"old-e")
    side.send(b"old-q1-b", b"old-q1-c", queue_id=1)
    side.send(b"old-f", topic="late")
    side.archive()
    restore(broker, tmp_path / "copy", data)
    # Queue 0 is shorter than before, queue 1 is longer, and the topic is created again.
    side.send(b"new-d")
    side.send(b"new-q1-b", b"new-q1-c", b"new-q1-d", queue_id=1)
    side.send(b"new-f", b"new-g", topic="late")
    summary = side.archive()
    assert summary.is_complete
    old = [b"old-d", b"old-e", b"old-f", b"old-q1-b", b"old-q1-c"]
    new = [b"new-d", b"new-f", b"new-g", b"new-q1-b", b"new-q1-c", b"new-q1-d"]
    assert side.bodies() == sorted([b"a", b"b", b"c", b"q1-a", *old, *new])
    assert "messages" not in side.archive().rows
    # An ordinary restart changes nothing.
    broker.restart()
    side.send(b"after")
    assert side.archive().rows["messages"] == 1


def test_a_running_archive_follows_a_restore(
    spark: SparkSession, broker: InProcessBroker, data: Path, tmp_path: Path
) -> None:
    """The archive must not count as complete because its offsets are higher than the new ends."""
    side = Lakeside(spark, broker, tmp_path, [MessageStream])
    archive = side.archiving(interval_ms=100)
    try:
        side.send(b"a")
        archive.run()
        copy(data, tmp_path / "copy")
        side.send(b"old-b", b"old-c", b"old-d")
        archive.run()
        restore(broker, tmp_path / "copy", data)
        side.send(b"new-b")
        assert archive.run().is_complete
        assert side.bodies() == [b"a", b"new-b", b"old-b", b"old-c", b"old-d"]
    finally:
        archive.rest()


def test_events_of_a_restored_broker_go_on_where_its_log_was_cut(
    spark: SparkSession, broker: InProcessBroker, data: Path, tmp_path: Path
) -> None:
    side = Lakeside(spark, broker, tmp_path)
    decide(broker, hold(broker, "before", row(b"1")))
    side.archive()
    copy(data, tmp_path / "copy")
    decide(broker, hold(broker, "old", row(b"2")))
    side.archive()
    restore(broker, tmp_path / "copy", data)
    decide(broker, hold(broker, "new", row(b"3")))
    side.archive()
    told = Counter(event for (event,) in side.rows(TRANSACTIONS, "event"))
    assert set(told.values()) == {3}, told
    assert side.rows(MESSAGES, "transaction_id") == [("before",), ("new",), ("old",)]


def test_a_half_message_that_both_histories_commit_is_archived_once(
    spark: SparkSession, broker: InProcessBroker, data: Path, tmp_path: Path
) -> None:
    side = Lakeside(spark, broker, tmp_path, [MessageStream])
    halves = [hold(broker, name, row(name.encode())) for name in ("both", "later", "only-new")]
    copy(data, tmp_path / "copy")
    side.send(b"old")
    decide(broker, halves[0])
    decide(broker, halves[1])
    side.archive()
    restore(broker, tmp_path / "copy", data)
    decide(broker, halves[0])
    side.send(b"new")
    assert side.archive().rows["messages"] == 1
    # The same holds in a batch that starts in the new history.
    broker.restart()
    decide(broker, halves[1])
    decide(broker, halves[2])
    assert side.archive().rows["messages"] == 1
    assert side.bodies() == [b"both", b"later", b"new", b"old", b"only-new"]


@pytest.mark.parametrize("more", [1, 5])
def test_a_new_checkpoint_goes_on_from_the_position_in_the_new_history(
    spark: SparkSession, broker: InProcessBroker, data: Path, tmp_path: Path, more: int
) -> None:
    """It must not continue after the lake's highest offset, which is of the old history."""
    side = Lakeside(spark, broker, tmp_path)
    side.send(b"a")
    copy(data, tmp_path / "copy")
    side.send(b"old-b", b"old-c", b"old-d")
    side.archive()
    restore(broker, tmp_path / "copy", data)
    side.send(b"new-b")
    side.archive()
    shutil.rmtree(side.checkpoints)
    later = [b"new-c-%d" % number for number in range(more)]
    side.send(*later)
    side.archive()
    assert side.bodies() == sorted([b"a", b"old-b", b"old-c", b"old-d", b"new-b", *later])
