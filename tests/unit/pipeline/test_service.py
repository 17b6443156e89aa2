"""The service's loop on a real broker. Stand-ins replace its jobs and record their runs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.pipeline.service import service as service_module
from escrowmq.pipeline.service.service import EXIT_SPARK_DIED
from escrowmq.testing.in_process import InProcessBroker
from tests.unit.broker.wire import eventually
from tests.unit.logged import event_of, events
from tests.unit.pipeline.conducted import DEADLINE_S, running

if TYPE_CHECKING:
    import pytest


async def test_with_nothing_due_nothing_is_done(broker: InProcessBroker) -> None:
    with running(broker) as one:
        facts = one.facts.brokers[broker.broker_address]
        await eventually(lambda: facts.is_reachable)
        first = facts.heard_at_ms
        await eventually(lambda: facts.heard_at_ms > first)
        assert one.jobs.done.empty()


def test_brokers_hear_about_ledgers_before_anything_is_due(broker: InProcessBroker) -> None:
    with running(broker) as one:
        assert one.jobs.reported.wait(DEADLINE_S)


def test_a_transaction_is_examined_as_soon_as_it_is_due(
    broker: InProcessBroker, producer: Producer
) -> None:
    with running(broker) as one:
        producer.send_half("orders", b"1")
        broker.advance(seconds=7)
        assert one.jobs.next() == "settle"


def test_remaining_transactions_are_examined_again(
    broker: InProcessBroker, producer: Producer
) -> None:
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker, settle_ms=100) as one:
        assert [one.jobs.next() for _ in range(3)] == ["settle"] * 3


async def test_a_failed_round_is_told_counted_and_tried_again(
    broker: InProcessBroker, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with caplog.at_level(logging.INFO, "escrowmq"), running(broker, settle_ms=100) as one:
        one.jobs.failure = ZeroDivisionError("a mistake")
        assert [one.jobs.next() for _ in range(2)] == ["settle"] * 2
        one.jobs.failure = Unavailable("broker_unreachable", "is it running?")
        one.jobs.next()
        one.jobs.failure = None
        await eventually(lambda: one.facts.settle.runs)
        assert one.facts.settle.failures >= 3
        assert one.facts.settle.failures_in_a_row == 0
    told = [record for record in caplog.records if event_of(record) == "settle_failed"]
    assert [vars(record)["failures_in_a_row"] for record in told][:3] == [1, 2, 3]
    # An unexpected error is logged with a traceback. An unavailable broker is not.
    assert told[0].exc_info is not None
    assert told[-1].exc_info is None


async def test_a_broker_that_is_away_is_said_once_and_found_again(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "AWAY_MS", 1)
    address = broker.broker_address
    with caplog.at_level(logging.INFO, "escrowmq"), running(broker, settle_ms=100) as one:
        facts = one.facts.brokers[address]
        await eventually(lambda: facts.is_reachable)
        broker.stop()
        await eventually(lambda: not facts.is_reachable)
        assert facts.away_since_ms > 0
        broker.start()
        await eventually(lambda: facts.is_reachable)
        assert (facts.away_since_ms, facts.error) == (0, "")
    told = [event_of(record) for record in caplog.records if "pipeline" in record.name]
    assert told == ["broker_found", "broker_away", "broker_found"]


def test_a_dead_spark_ends_it_with_a_code_of_its_own(
    broker: InProcessBroker, producer: Producer
) -> None:
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker, settle_ms=100) as one:
        assert one.jobs.next() == "settle"
        one.jobs.lives = False
        assert one.ends() == EXIT_SPARK_DIED


def test_it_stops_in_the_middle_of_a_round(broker: InProcessBroker, producer: Producer) -> None:
    with running(broker) as one:
        one.jobs.may_settle.clear()
        producer.send_half("orders", b"1")
        broker.advance(seconds=7)
        one.service.stop()
        assert one.ends() == 0


async def test_a_round_that_takes_too_long_is_given_up(
    broker: InProcessBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LOOK_MS", 10)
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker, round_ms=1_000) as one:
        one.jobs.may_settle.clear()
        assert one.jobs.next() == "cancel"
        await eventually(lambda: one.facts.settle.failures)
        assert one.facts.settle.last_error == "RuntimeError: cancelled"


async def test_new_messages_and_rounds_are_archived(
    broker: InProcessBroker, producer: Producer
) -> None:
    held = producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker, settle_ms=100, archive=True) as one:
        done = {one.jobs.next() for _ in range(2)}
        producer.end(held, Resolution.COMMIT)
        while not {"settle", "archive"} <= done or not one.jobs.rounds:
            # Send a message before each wait, so that there is something to archive.
            producer.send("orders", b"more")
            done.add(one.jobs.next())
        assert one.jobs.rounds[0] == {"seen": 3, "asked": 2, "took_ms": 5}
        facts = one.facts.brokers[broker.broker_address]
        await eventually(lambda: facts.archive_lag_bytes == 0)


def test_consumers_that_go_on_are_archived(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PROGRESS_MS", 10)
    with running(broker, settle_ms=100, archive=True) as one:
        assert [one.jobs.next(), one.jobs.next()] == ["archive", "upkeep"]
        one.jobs.read += 1
        assert one.jobs.next() == "archive"


async def test_consumers_that_stay_where_they_are_are_no_news(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PROGRESS_MS", 10)
    with running(broker, settle_ms=100, archive=True) as one:
        assert [one.jobs.next(), one.jobs.next()] == ["archive", "upkeep"]
        looks = one.jobs.looks
        await eventually(lambda: one.jobs.looks > looks + 2)
        assert one.jobs.done.empty()


def test_memory_is_given_back_when_there_is_nothing_to_do(
    broker: InProcessBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TIDY_AFTER_MS", 10)
    monkeypatch.setattr(service_module, "LOOK_MS", 10)
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker) as one:
        assert [one.jobs.next(), one.jobs.next()] == ["settle", "tidy"]


async def test_the_lake_is_kept_up_after_archiving_and_settling_does_not_wait_for_it(
    broker: InProcessBroker, producer: Producer
) -> None:
    producer.send("orders", b"0")
    with running(broker, settle_ms=100, archive=True) as one:
        one.jobs.may_keep_up.clear()
        assert [one.jobs.next(), one.jobs.next()] == ["archive", "upkeep"]
        producer.send_half("orders", b"1")
        broker.advance(seconds=7)
        assert one.jobs.next() == "settle"
        assert one.facts.upkeep.runs == 0
        one.jobs.may_keep_up.set()
        await eventually(lambda: one.facts.upkeep.runs)
        assert one.facts.upkeep.last["files_merged"] == 8
    assert one.jobs.days == [datetime.now(UTC).date()]


async def test_a_failed_upkeep_is_told_and_tried_again(
    broker: InProcessBroker, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send("orders", b"0")
    with running(broker, archive=True, upkeep_ms=1_000) as one:
        one.jobs.upkeep_failure = Unavailable("lake_unreachable", "the lake's storage")
        await eventually(lambda: one.facts.upkeep.failures)
        one.jobs.upkeep_failure = None
        await eventually(lambda: one.facts.upkeep.runs)
        assert "escrowmq_pipeline_upkeep_files_merged_total 8\n" in one.facts.metrics()
    assert "upkeep_failed" in events(caplog)


async def test_records_are_compared_at_an_interval_and_what_differs_is_a_metric(
    broker: InProcessBroker, producer: Producer
) -> None:
    with running(broker, compare_ms=100) as one:
        producer.send_half("orders", b"1")
        assert one.jobs.next() == "compare"
        await eventually(lambda: one.facts.compare.runs)
        assert "escrowmq_pipeline_compare_differences_held 1" in one.facts.metrics()


def test_the_log_that_grew_is_compared_again(broker: InProcessBroker, producer: Producer) -> None:
    with running(broker, compare_ms=100) as one:
        for _ in range(3):
            producer.send_half("orders", b"1")
            assert one.jobs.next() == "compare"
