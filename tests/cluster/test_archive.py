"""The archive on two hosts, one of which dies in the middle of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.archive.archiving import archive_once
from escrowmq.pipeline.lake.tables import MESSAGES, TRANSACTIONS
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import Cluster
from tests.cluster.deadly import DeadlyWay
from tests.spark.lakeside import Lakeside
from tests.spark.topics import decide, hold, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: More than two pages, so that one page has been read when the host dies.
COUNT = 40_000


@pytest.fixture
def side(spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    with InProcessBroker(queue_count=2) as broker:
        broker.create_topic("orders", queues=2)
        yield Lakeside(spark, broker, tmp_path)


def in_the_lake(spark: SparkSession, side: Lakeside) -> Counter[bytes]:
    """Return the bodies in the lake, as a job on the cluster reads them."""
    bodies = side.lake.read(spark, MESSAGES).groupBy("body").count()
    return Counter({bytes(row["body"]): row["count"] for row in bodies.collect()})


@pytest.mark.slice
def test_a_host_dies_while_messages_are_archived(
    spark: SparkSession, cluster: Cluster, side: Lakeside
) -> None:
    sent = [b"%d" % number for number in range(COUNT)]
    for at in range(0, COUNT, 10_000):
        side.send(*sent[at : at + 10_000], queue_id=at // 10_000 % 2)
    decide(side.broker, hold(side.broker, "paid", row(b"paid")))
    decide(side.broker, hold(side.broker, "unpaid", row(b"unpaid")), "rollback")
    places = (side.lake.uri, str(side.checkpoints))
    with DeadlyWay(side.broker.broker_address, cluster, NativeCode.READ_STORED, nth=2) as way:
        archived = archive_once(spark, [way.address], *places)
        assert way.victim
    assert archived.rows["messages"] == COUNT + 1
    assert in_the_lake(spark, side) == Counter([*sent, b"paid"])
    events = side.rows(TRANSACTIONS, "log_offset", "event")
    assert len(events) == len(set(events)) == archived.rows["transactions"]
    # The next run continues from there and writes nothing twice.
    side.send(b"later")
    assert archive_once(spark, [side.broker.broker_address], *places).rows["messages"] == 1
    assert in_the_lake(spark, side) == Counter([*sent, b"paid", b"later"])
