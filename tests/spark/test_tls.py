"""Source, views and sink on a broker that requires TLS, with options and with the environment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from escrowmq.testing import InProcessBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(tls=True) as running:
        running.create_topic("orders", queues=2)
        yield running


def options(broker: InProcessBroker) -> dict[str, str]:
    assert broker.tls is not None
    return {"broker": str(broker.broker_address), "tlsCa": str(broker.tls.ca_file)}


def bodies(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(f"one-{number}",) for number in range(6)], "body string")


def test_options_are_enough_for_sink_source_and_views(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    frame = bodies(spark).repartition(2)
    frame.write.format("escrowmq").options(**options(broker), topic="orders").mode("append").save()
    source = spark.read.format("escrowmq").options(**options(broker), topic="orders").load()
    assert {bytes(one.body) for one in source.collect()} == {b"one-%d" % n for n in range(6)}
    view = spark.read.format("escrowmq").options(**options(broker), view="halves").load()
    assert view.count() > 0


def test_a_plan_shows_no_key(spark: SparkSession, broker: InProcessBroker) -> None:
    assert broker.tls is not None
    source = spark.read.format("escrowmq").options(**options(broker), topic="orders").load()
    plan = source._jdf.queryExecution().toString()
    assert "PRIVATE" not in plan


def test_without_tls_the_error_says_what_is_missing(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    given = {"broker": str(broker.broker_address), "topic": "orders"}
    with pytest.raises(Exception, match="tls_required"):
        spark.read.format("escrowmq").options(**given).load().collect()
