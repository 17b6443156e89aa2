"""A settle round applies the rules and the ledger to each undecided transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq import Producer, Resolution
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import ProtocolViolation
from escrowmq.pipeline.settle import stages
from escrowmq.pipeline.settle.settling import settle_round
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import Due
from tests.spark.settle_shop import (
    GROUP,
    LATE_S,
    Database,
    hold,
    jobs_begun,
    ledgers,
    settle,
    states,
    transactions,
    visible,
)
from tests.unit.broker.wire import eventually
from tests.unit.logged import event_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREPARED, COMMITTED, ROLLED_BACK, PARKED = range(4)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


def test_a_ledger_decides_with_no_producer_online(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["there", "fenced", "absent"], ledger=database.uuid)
    database.commit("there")
    database.commit("fenced", outcome="rolled_back")
    broker.advance(seconds=LATE_S)
    done = settle(spark, broker, database)
    assert states(broker) == {"there": COMMITTED, "fenced": ROLLED_BACK, "absent": ROLLED_BACK}
    assert visible(broker) == ["there"]
    assert database.outcomes()["absent"] == "rolled_back"
    assert (done.seen, done.committed, done.rolled_back) == (3, 1, 2)
    assert (done.brokers, done.away, done.unknown) == (1, (), {})
    assert settle(spark, broker, database).seen == 0


def test_a_transaction_without_a_row_waits_until_its_deadline(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["slow"], ledger=database.uuid)
    broker.advance(seconds=59)
    done = settle(spark, broker, database)
    assert (done.unknown, done.rolled_back) == ({"absent": 1}, 0)
    assert states(broker) == {"slow": PREPARED}
    database.commit("slow")
    assert settle(spark, broker, database).committed == 1


def test_transactions_that_are_not_due_are_only_counted(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["fresh", "young"], ledger=database.uuid)
    database.commit("fresh")
    done = settle(spark, broker, database)
    assert (done.seen, done.waiting, done.committed) == (2, 2, 0)


def test_with_nothing_undecided_no_job_runs(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    before = jobs_begun(spark)
    done = settle(spark, broker, database)
    assert (done.seen, done.brokers) == (0, 1)
    assert jobs_begun(spark) == before


async def test_producers_are_asked_about_what_has_no_ledger_here(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    """This includes an unconfigured ledger, because the producers' SDK can read it."""
    answers = {"a": Resolution.COMMIT, "b": Resolution.ROLLBACK, "c": Resolution.UNKNOWN}
    hold(broker, answers)
    hold(broker, ["d"], ledger="another ledger")
    broker.advance(seconds=6)
    with Producer(
        broker.address, GROUP, checker=lambda half: answers[half.body.decode()]
    ) as producer:
        producer.send("hello", b"")
        done = settle(spark, broker, database)
        assert (done.asked, done.no_producer) == (4, 0)
        expected = {"a": COMMITTED, "b": ROLLED_BACK, "c": PREPARED, "d": PREPARED}
        await eventually(lambda: states(broker) == expected)
        assert {row.checks_sent for row in transactions(broker).values()} >= {1}
        # Their next check is not due yet.
        done = settle(spark, broker, database)
        assert (done.seen, done.waiting, done.asked) == (2, 2, 0)


def test_without_a_producer_online_no_check_is_sent_or_counted(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    hold(broker, ["a", "b"])
    broker.advance(seconds=6)
    done = settle(spark, broker)
    assert (done.seen, done.no_producer, done.asked) == (2, 2, 0)
    assert {row.checks_sent for row in transactions(broker).values()} == {0}


def test_a_group_is_asked_within_its_budget_and_what_waited_longest_first(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        hold(broker, [name])
        broker.advance(seconds=1)
    hold(broker, ["other"], group="payments")
    broker.advance(seconds=10)
    with (
        Producer(broker.address, GROUP, checker=lambda _half: None) as orders,
        Producer(broker.address, "payments", checker=lambda _half: None) as payments,
    ):
        orders.send("hello", b"")
        payments.send("hello", b"")
        done = settle(spark, broker, asks_max=2)
        assert (done.asked, done.over_budget) == (3, 3)
        checked = {one for one, row in transactions(broker).items() if row.checks_sent}
        assert checked == {"t0", "t1", "other"}
        done = settle(spark, broker, asks_max=2)
        assert (done.asked, done.over_budget) == (2, 1)


def test_transactions_asked_too_often_or_too_old_are_parked_with_an_alert(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    policy = CheckPolicy(checks_max=1, park_after_ms=3_600_000)
    with InProcessBroker(policy=policy) as broker:
        hold(broker, ["old"])
        broker.advance(seconds=3_000)
        hold(broker, ["asked"])
        broker.advance(seconds=6)
        with Producer(broker.address, GROUP, checker=lambda _half: None) as producer:
            producer.send("hello", b"")
            assert settle(spark, broker).asked == 2
            # The last check has as much time for an answer as any other.
            assert settle(spark, broker).waiting == 2
        broker.advance(seconds=1_000)
        with caplog.at_level(logging.INFO, logger="escrowmq"):
            done = settle(spark, broker)
        assert (done.parked, done.no_producer) == (2, 0)
        assert states(broker) == {"old": PARKED, "asked": PARKED}
        alerts = [line for line in caplog.records if event_of(line) == "transaction_parked"]
        said = {(vars(line)["transaction_id"], vars(line)["reason"]) for line in alerts}
        assert said == {("old", "past_retention"), ("asked", "exhausted")}
        assert {line.levelname for line in alerts} == {"WARNING"}
        assert settle(spark, broker).seen == 0


def test_a_dead_ledger_holds_nothing_open_for_ever(spark: SparkSession, database: Database) -> None:
    with InProcessBroker(policy=CheckPolicy(park_after_ms=3_600_000)) as broker:
        hold(broker, ["odd", "good"], ledger=database.uuid)
        database.commit("odd", outcome="whatever")
        broker.advance(seconds=3_599)
        done = settle(spark, broker, database)
        assert (done.unknown, done.rolled_back) == ({"odd_row": 1}, 1)
        broker.advance(seconds=1)
        done = settle(spark, broker, database)
        assert (done.parked, done.unknown) == (1, {})
        assert states(broker) == {"odd": PARKED, "good": ROLLED_BACK}


def test_each_brokers_own_policy_holds(spark: SparkSession, database: Database) -> None:
    slow, fast = CheckPolicy(check_after_ms=20_000), CheckPolicy(check_after_ms=5_000)
    with (
        InProcessBroker(policy=slow, name="slow") as first,
        InProcessBroker(policy=fast, name="fast") as second,
    ):
        for broker in (first, second):
            hold(broker, ["a"], ledger=database.uuid)
            broker.advance(seconds=10)
        database.commit("a")
        addresses = [first.broker_address, second.broker_address]
        done = settle_round(spark, addresses, ledgers(database))
        assert (done.waiting, done.committed, done.brokers) == (1, 1, 2)
        assert states(second) == {"a": COMMITTED}


def test_facts_that_no_rule_fits_fail_the_round(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hold(broker, ["a", "b"], ledger=database.uuid)
    broker.advance(seconds=LATE_S)
    never = (Due.WAIT, lambda half, _policy: half.state > PARKED)
    monkeypatch.setattr(stages, "DUES", (never,))
    with pytest.raises(ProtocolViolation, match=r"due_missing.*rows=2"):
        settle(spark, broker, database)
    assert states(broker) == {"a": PREPARED, "b": PREPARED}


def test_the_broker_hears_of_the_pipeline(spark: SparkSession, broker: InProcessBroker) -> None:
    hold(broker, ["a"], ledger="")
    broker.advance(seconds=300 * 3_600)
    settle(spark, broker)
    with NativeCalls(broker.broker_address) as calls:
        status = calls.call(NativeCode.STATUS).header
    assert (status.pipeline_away_since_ms, status.parked) == (0, 1)
