"""Spark's option ``broker`` takes the broker's address or its name server's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.testing import InProcessBroker
from tests.spark.topics import hold, row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(queue_count=1) as broker:
        send(broker, row(b"1"))
        hold(broker, "undecided", row(b"2"))
        yield broker


@pytest.mark.parametrize("which", ["name server", "broker"])
def test_source_view_and_sink_take_either_address(
    spark: SparkSession, broker: InProcessBroker, which: str
) -> None:
    address = broker.address if which == "name server" else broker.broker_address
    reader = spark.read.format("escrowmq").option("broker", address)
    assert [one.body for one in reader.option("topic", "orders").load().collect()] == [b"1"]
    views = spark.read.format("escrowmq").option("broker", address)
    assert views.option("view", "transactions").load().count() >= 1
    rows = spark.createDataFrame([(bytearray(b"x"),)], "body binary")
    topic = f"sunk-{which.replace(' ', '-')}"
    writer = rows.write.format("escrowmq").option("broker", address).option("topic", topic)
    writer.mode("append").save()
    assert [one.body for one in broker.messages(topic)] == [b"x"]


def test_both_addresses_of_one_broker_are_not_two_brokers(broker: InProcessBroker) -> None:
    with pytest.raises(RequestRefused, match="broker_named_twice"):
        take_pins([broker.address, broker.broker_address])
