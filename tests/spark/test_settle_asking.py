"""Which producers a round asks, when, and by which clock, with and without a ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq import Producer
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.testing import InProcessBroker, ManualClock
from escrowmq.transaction.policy import CheckPolicy
from tests.spark.settle_shop import GROUP, Database, hold, ledgers, settle, states, transactions
from tests.unit.broker.wire import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.client.messages.messages import Received

PREPARED, ROLLED_BACK = 0, 2


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


async def test_the_sender_of_a_half_message_is_asked_first(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    heard: list[tuple[str, bytes]] = []

    def listening(name: str) -> Producer:
        def checker(half: Received) -> None:
            heard.append((name, half.body))

        return Producer(broker.address, GROUP, checker=checker)

    with listening("first") as first, listening("second") as second:
        for number in range(3):
            first.send_half("order-paid", b"of first %d" % number)
            second.send_half("order-paid", b"of second %d" % number)
        broker.advance(seconds=6)
        assert settle(spark, broker).asked == 6
        await eventually(lambda: len(heard) == 6)
    assert all(body.startswith(f"of {name}".encode()) for name, body in heard)


def test_each_transaction_waits_longer_after_each_check_of_its_own(spark: SparkSession) -> None:
    policy = CheckPolicy(check_after_ms=5_000, check_interval_ms=10_000, check_backoff=2.0)
    with (
        InProcessBroker(policy=policy) as broker,
        Producer(broker.address, GROUP, checker=lambda _half: None) as producer,
    ):
        producer.send("hello", b"")
        hold(broker, ["old"])
        asked_at_s: dict[str, list[int]] = {"old": [], "young": []}
        before = {"old": 0, "young": 0}
        for second in range(0, 61, 5):
            if second == 30:
                hold(broker, ["young"])
            settle(spark, broker)
            for one, row in transactions(broker).items():
                if row.checks_sent > before[one]:
                    asked_at_s[one].append(second)
                    before[one] = row.checks_sent
            broker.advance(seconds=5)
    assert asked_at_s == {"old": [5, 15, 35], "young": [35, 45]}


def test_ages_and_deadlines_are_on_each_brokers_own_clock(
    spark: SparkSession, database: Database
) -> None:
    """Neither this machine's time nor another broker's matters."""
    now_ms = time.time_ns() // 1_000_000
    past, future = ManualClock(now_ms - 10**9), ManualClock(now_ms + 10**9)
    with (
        InProcessBroker(clock=past, name="past") as behind,
        InProcessBroker(clock=future, name="future") as ahead,
    ):
        hold(behind, ["behind"], ledger=database.uuid)
        hold(ahead, ["ahead"], ledger=database.uuid)
        addresses = [behind.broker_address, ahead.broker_address]
        assert settle_round(spark, addresses, ledgers(database)).waiting == 2
        for broker in (behind, ahead):
            broker.advance(seconds=59)
        done = settle_round(spark, addresses, ledgers(database))
        assert (done.unknown, done.rolled_back) == ({"absent": 2}, 0)
        behind.advance(seconds=2)
        assert settle_round(spark, addresses, ledgers(database)).rolled_back == 1
        assert (states(behind), states(ahead)) == ({"behind": ROLLED_BACK}, {"ahead": PREPARED})
        assert database.outcomes() == {"behind": "rolled_back"}


def test_a_round_tells_the_broker_that_the_pipeline_is_there(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    """Even an idle round counts; otherwise the status shows since when the pipeline is away."""

    def away_since_ms() -> int:
        with NativeCalls(broker.broker_address) as calls:
            status = calls.call(NativeCode.STATUS).header
        assert isinstance(status, StatusAnswer)
        return status.pipeline_away_since_ms

    began_ms = broker.clock.now_ms()
    broker.advance(seconds=121)
    assert away_since_ms() == began_ms
    assert settle(spark, broker).seen == 0
    assert away_since_ms() == 0
    last_ms = broker.clock.now_ms()
    broker.advance(seconds=121)
    assert away_since_ms() == last_ms
