"""The service's loop, on a real broker; rounds and runs are stand-ins that say what they do."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from escrowmq.client.outgoing import Resolution
from escrowmq.client.producer import Producer
from escrowmq.model.clock import SystemClock
from escrowmq.model.errors import Unavailable
from escrowmq.pipeline import service as service_module
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.pages import Pages
from escrowmq.pipeline.service import EXIT_SPARK_DIED, Service
from escrowmq.pipeline.telemetry import Facts, Telemetry
from escrowmq.testing.in_process import InProcessBroker
from tests.unit.broker.wire import eventually

DEADLINE_S = 20.0
#: Long enough that nothing in a test waits for it.
NEVER_MS = 3_600_000


class Stand:
    """Jobs that tell when they are done, and fail when they are told to."""

    def __init__(self) -> None:
        self.done: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.failure: Exception | None = None
        self.may_settle = threading.Event()
        self.may_settle.set()
        self.rounds: list[Facts] = []
        self.read = 0
        self.lives = True

    def settle(self) -> Facts:
        self.may_settle.wait(DEADLINE_S)
        self.done.put("settle")
        if self.failure is not None:
            raise self.failure
        return {"seen": 3, "asked": 2, "took_ms": 5}

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        self.rounds += rounds
        self.done.put("archive")
        return {"rows": 10}

    def progress(self) -> object:
        return self.read

    def cancel_settle(self) -> None:
        self.done.put("cancel")
        self.failure = RuntimeError("cancelled")
        self.may_settle.set()

    def tidy(self) -> None:
        self.done.put("tidy")

    def is_alive(self) -> bool:
        return self.lives

    def next(self) -> str:
        return self.done.get(timeout=DEADLINE_S)


class Running:
    """A service in a thread of its own."""

    def __init__(self, config: PipelineConfig) -> None:
        self.jobs = Stand()
        self.service = Service(config, self.jobs, clock=SystemClock())
        self.exit_codes: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: self.exit_codes.put(self.service.run()))
        self._thread.start()

    @property
    def facts(self) -> Telemetry:
        return self.service.telemetry

    def ends(self) -> int:
        return self.exit_codes.get(timeout=DEADLINE_S)


@contextmanager
def running(
    broker: InProcessBroker, *, settle_ms: int = NEVER_MS, archive: bool = False, round_ms: int = 0
) -> Iterator[Running]:
    config = PipelineConfig(
        brokers=broker.broker_address,
        settle_interval_ms=settle_ms,
        archive=archive,
        archive_interval_ms=100,
        round_ms_max=round_ms or NEVER_MS,
    )
    one = Running(config)
    try:
        yield one
    finally:
        one.jobs.may_settle.set()
        one.service.stop()
        one._thread.join(DEADLINE_S)
        assert not one._thread.is_alive()


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as started:
        yield started


@pytest.fixture
def producer(broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, group="orders") as started:
        yield started


async def test_with_nothing_due_nothing_is_done(broker: InProcessBroker) -> None:
    with running(broker) as one:
        facts = one.facts.brokers[broker.broker_address]
        await eventually(lambda: facts.is_reachable)
        first = facts.heard_at_ms
        await eventually(lambda: facts.heard_at_ms > first)
        assert one.jobs.done.empty()


def test_what_comes_due_is_looked_at_at_once(broker: InProcessBroker, producer: Producer) -> None:
    with running(broker) as one:
        producer.send_half("orders", b"1")
        broker.advance(seconds=7)
        assert one.jobs.next() == "settle"


def test_what_is_left_over_is_looked_at_again(broker: InProcessBroker, producer: Producer) -> None:
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
    told = [record for record in caplog.records if record.message == "settle_failed"]
    assert [vars(record)["failures_in_a_row"] for record in told][:3] == [1, 2, 3]
    # Our own mistakes come with their trace; what others cannot help does not.
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
    told = [record.message for record in caplog.records if "pipeline" in record.name]
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


async def test_what_is_new_in_the_log_is_archived_and_rounds_with_it(
    broker: InProcessBroker, producer: Producer
) -> None:
    held = producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker, settle_ms=100, archive=True) as one:
        done = {one.jobs.next() for _ in range(2)}
        producer.end(held, Resolution.COMMIT)
        while done != {"settle", "archive"} or not one.jobs.rounds:
            done.add(one.jobs.next())
            producer.send("orders", b"more")
        assert one.jobs.rounds[0] == {"seen": 3, "asked": 2, "took_ms": 5}
        facts = one.facts.brokers[broker.broker_address]
        await eventually(lambda: facts.archive_lag_bytes == 0)


def test_consumers_that_go_on_are_archived(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PROGRESS_MS", 10)
    with running(broker, settle_ms=100, archive=True) as one:
        assert one.jobs.next() == "archive"
        one.jobs.read += 1
        assert one.jobs.next() == "archive"


def test_memory_is_given_back_when_there_is_nothing_to_do(
    broker: InProcessBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "TIDY_AFTER_MS", 10)
    monkeypatch.setattr(service_module, "LOOK_MS", 10)
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker) as one:
        assert [one.jobs.next(), one.jobs.next()] == ["settle", "tidy"]


def read(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection(address, timeout=DEADLINE_S)
    connection.request(method, path)
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode()
    finally:
        connection.close()


async def test_people_and_prometheus_see_what_was_done(
    broker: InProcessBroker, producer: Producer
) -> None:
    producer.send_half("orders", b"1")
    broker.advance(seconds=7)
    with running(broker) as one:
        await eventually(lambda: one.facts.settle.runs)
        pages = Pages("127.0.0.1", 0, one.facts)
        code, text = read(pages.address, "/status")
        status = json.loads(text)
        assert (code, status["settle"]["last"]["asked"]) == (200, 2)
        assert status["brokers"][broker.broker_address]["undecided"] == 1
        code, text = read(pages.address, "/metrics?x=1")
        assert code == 200
        assert "# TYPE escrowmq_pipeline_settle_asked_total counter\n" in text
        assert "\nescrowmq_pipeline_settle_asked_total 2\n" in text
        label = f'{{broker="{broker.broker_address}"}}'
        assert f"\nescrowmq_pipeline_broker_undecided{label} 1\n" in text
        assert read(pages.address, "/status", "HEAD") == (200, "")
        assert read(pages.address, "/") == (404, "there are /status /metrics\n")
        pages.close()
