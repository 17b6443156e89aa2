"""Settling on two hosts, one of which dies after it has sent its verdicts to the broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest

from escrowmq import Producer, Resolution
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Received
from escrowmq.pipeline.settle import plan, settling
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import Cluster, wait_until
from tests.cluster.deadly import DeadlyWay
from tests.ledger.conftest import postgres_server
from tests.spark.settle_shop import GROUP, LATE_S, hold, ledgers, states, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREPARED, COMMITTED, ROLLED_BACK = range(3)
IDS = [f"{number:04}" for number in range(2_000)]
PAID = IDS[::2]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessBroker]:
    """A broker whose rows are split into enough ranges for both hosts."""
    monkeypatch.setattr(plan, "SMALL_ROWS", 0)
    monkeypatch.setattr(plan, "RANGE_ROWS", 250)
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def postgres_url() -> Iterator[str]:
    with postgres_server() as server:
        yield server.get_uri()


def outcomes(url: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        sql = "SELECT transaction_id, outcome FROM escrowmq_ledger"
        return dict(connection.execute(sql).fetchall())


@pytest.mark.slice
def test_a_host_dies_while_a_ledger_is_looked_into(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster, postgres_url: str
) -> None:
    """Its fences and verdicts stand, and the task that repeats its work finds the same."""
    uuid = SqlLedger(postgres_url).create()
    hold(broker, IDS, ledger=uuid)
    with psycopg.connect(postgres_url) as connection, connection.cursor() as cursor:
        sql = "INSERT INTO escrowmq_ledger VALUES (%s, %s, 'committed', 1)"
        cursor.executemany(sql, [(one, GROUP) for one in PAID])
    broker.advance(seconds=LATE_S)
    known = ledgers(postgres_url)
    with DeadlyWay(broker.broker_address, cluster, NativeCode.OBEY_VERDICTS) as way:
        done = settling.settle_round(spark, [way.address], known)
        assert way.victim
    assert (done.unknown, done.away, done.refused) == ({}, (), 0)
    is_paid = dict.fromkeys(IDS, False) | dict.fromkeys(PAID, True)
    assert visible(broker) == PAID
    assert states(broker) == {
        one: COMMITTED if paid else ROLLED_BACK for one, paid in is_paid.items()
    }
    assert outcomes(postgres_url) == {
        one: "committed" if paid else "rolled_back" for one, paid in is_paid.items()
    }
    assert settling.settle_round(spark, [broker.broker_address], known).seen == 0


def test_a_host_dies_while_producers_are_asked(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster
) -> None:
    """No producer is asked twice because of it."""
    asked: Counter[str] = Counter()

    def answer(half: Received) -> Resolution:
        one = half.body.decode()
        asked[one] += 1
        return Resolution.COMMIT if one in PAID else Resolution.ROLLBACK

    hold(broker, IDS[:1_000])
    broker.advance(seconds=6)
    with (
        DeadlyWay(broker.broker_address, cluster, NativeCode.OBEY_VERDICTS) as way,
        Producer(broker.address, GROUP, checker=answer) as producer,
    ):
        producer.send("hello", b"")
        settling.settle_round(spark, [way.address], ledgers())
        assert way.victim
        wait_until(lambda: PREPARED not in states(broker).values(), "end of the undecided")
    assert asked == Counter(IDS[:1_000])
    assert visible(broker) == [one for one in PAID if one in asked]
