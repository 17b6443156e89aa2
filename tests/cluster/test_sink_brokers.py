"""The sink over several brokers, on a cluster whose drivers are killed with SIGKILL."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.look_up.ledgers import Ledgers
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import Cluster
from tests.cluster.drivers import Drivers
from tests.spark.streams import TOPIC, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The step of a commit where a driver is killed: the count of messages visible after that.
STEPS = {
    "check.after:kill": 0,
    "forward.one:kill": 10,
    # The driver repeats the same batch, and home answers that it is done.
    "decide.after:kill": 10,
}


@pytest.fixture
def brokers() -> Iterator[list[InProcessBroker]]:
    with ExitStack() as started:
        yield [started.enter_context(InProcessBroker(name=name)) for name in "abc"]


def bodies(brokers: list[InProcessBroker]) -> Counter[str]:
    return Counter(one.body.decode() for broker in brokers for one in broker.messages(TOPIC))


def test_a_driver_dies_at_every_step_of_a_commit_over_three_brokers(
    spark: SparkSession, brokers: list[InProcessBroker], cluster: Cluster, tmp_path: Path
) -> None:
    addresses = [broker.broker_address for broker in brokers]
    stream = Stream(spark, tmp_path, ",".join(addresses))
    for start in range(0, 30, 10):
        stream.add(*range(start, start + 10))
    drivers = Drivers(cluster, stream, tmp_path)
    for step, count in STEPS.items():
        assert drivers.run(step) == -signal.SIGKILL
        settle_round(spark, addresses, Ledgers({}))
        assert list(bodies(brokers).values()) == [1] * count
    assert drivers.run() == 0
    settle_round(spark, addresses, Ledgers({}))
    assert bodies(brokers) == Counter(str(number) for number in range(30))
    assert [broker.undecided() for broker in brokers] == [[], [], []]
