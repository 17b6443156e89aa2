"""Topics in the lake: each message once, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.testing import InProcessBroker
from tests.spark.lakeside import Lakeside
from tests.spark.topics import decide, hold, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    """An empty broker and an empty lake."""
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield Lakeside(spark, broker, tmp_path)


def test_committed_messages_are_archived_once_across_restarts(side: Lakeside) -> None:
    side.send(b"a", b"b")
    undecided = hold(side.broker, "t-1", row(b"d", queue_id=1))
    assert side.archive().rows == {"messages": 2}
    assert side.archive().rows == {}
    side.broker.restart()
    decide(side.broker, undecided)
    side.send(b"c", topic="invoices")
    assert side.archive().rows == {"messages": 2}
    assert side.bodies() == [b"a", b"b", b"c", b"d"]
