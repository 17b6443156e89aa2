"""Rounds that run twice, at once, or die in the middle: each transaction is decided once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.settle import plan, settling
from escrowmq.pipeline.settle.tasks import SettleTask
from escrowmq.pipeline.settle.verdicts import VerdictSender
from escrowmq.protocol.native.operator_headers import DecideByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.spark.settle_shop import LATE_S, Database, hold, ledgers, settle, states, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTED, ROLLED_BACK = 1, 2
COUNT = 60
IDS = [f"t{number:03}" for number in range(COUNT)]
THERE = IDS[::2]
EXPECTED = {one: COMMITTED if one in THERE else ROLLED_BACK for one in IDS}


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


@pytest.fixture
def broker(database: Database) -> Iterator[InProcessBroker]:
    """Yield a broker whose transactions are overdue; every other one is in the ledger."""
    with InProcessBroker() as broker:
        hold(broker, IDS, ledger=database.uuid)
        database.commit(*THERE)
        broker.advance(seconds=LATE_S)
        yield broker


@pytest.fixture
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan two tasks or a few more."""
    monkeypatch.setattr(plan, "RANGE_ROWS", COUNT // 2)
    monkeypatch.setattr(plan, "SMALL_ROWS", 0)


def is_settled(broker: InProcessBroker) -> bool:
    """Return whether everything is decided once, without a contradiction."""
    with NativeCalls(broker.broker_address) as calls:
        contradictions = calls.call(NativeCode.STATUS).header.contradictions
    return states(broker) == EXPECTED and visible(broker) == THERE and not contradictions


@dataclass(frozen=True)
class Dying:
    """A task that dies after this many requests to the broker, in its first attempts."""

    task: SettleTask
    requests: int
    attempts: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() < self.attempts:
            done, tell = 0, VerdictSender._tell

            def dying(verdicts: VerdictSender, broker: str, batch: Any) -> None:  # noqa: ANN401 - Arrow's
                nonlocal done
                if done >= self.requests:
                    raise RuntimeError("planted")
                # Split the batch, so that the task can die in the middle.
                tell(verdicts, broker, batch.slice(0, 3))
                done += 1
                dying(verdicts, broker, batch.slice(3))

            VerdictSender._tell = dying  # type: ignore[method-assign,assignment]
            try:
                yield from self.task(batches)
            finally:
                VerdictSender._tell = tell  # type: ignore[method-assign]
        else:
            yield from self.task(batches)


@dataclass(frozen=True)
class Overtaken:
    """A task that is overtaken: another decision comes after it has read its rows."""

    task: SettleTask
    broker: str
    transaction_id: str
    resolution: str

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = list(batches)
        header = DecideByHandHeader(
            transaction_id=self.transaction_id, resolution=self.resolution, reason="x", by="me"
        )
        with NativeCalls(self.broker) as calls:
            calls.call(NativeCode.DECIDE_BY_HAND, header)
        yield from self.task(iter(rows))


@pytest.mark.parametrize(("resolution", "contradictions"), [("commit", 0), ("rollback", 1)])
def test_a_verdict_on_what_has_moved_on_meanwhile_is_dropped(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    *,
    resolution: str,
    contradictions: int,
) -> None:
    """The record's version is not the one in the verdict, so the first decision stays."""
    monkeypatch.setattr(
        "escrowmq.pipeline.settle.plan.SettleTask",
        lambda known, sights: Overtaken(
            SettleTask(known, sights), broker.broker_address, THERE[0], resolution
        ),
    )
    done = settle(spark, broker, database)
    assert (done.stale, done.committed, done.rolled_back) == (1, COUNT // 2 - 1, COUNT // 2)
    assert states(broker)[THERE[0]] == (COMMITTED if resolution == "commit" else ROLLED_BACK)
    with NativeCalls(broker.broker_address) as calls:
        assert calls.call(NativeCode.STATUS).header.contradictions == contradictions


@pytest.mark.usefixtures("many_tasks")
def test_rounds_of_two_drivers_at_once_decide_each_once(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    sessions = [spark, spark.newSession()]
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(lambda one: settle(one, broker, database), sessions))
    assert is_settled(broker)
    decided = sum(one.committed + one.rolled_back for one in done)
    stale = sum(one.stale for one in done)
    locked = sum(one.unknown_total for one in done)
    assert COUNT <= decided + stale + locked <= 2 * COUNT
    assert not any(one.refused for one in done)


@pytest.mark.parametrize("requests", [0, 2])
@pytest.mark.usefixtures("many_tasks")
def test_a_round_that_is_killed_in_the_middle_is_finished_by_the_next(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    requests: int,
) -> None:
    with monkeypatch.context() as planted:
        planted.setattr(
            "escrowmq.pipeline.settle.plan.SettleTask",
            lambda known, sights: Dying(SettleTask(known, sights), requests, attempts=99),
        )
        with pytest.raises(Unavailable, match=r"round_failed.*RuntimeError: planted"):
            settle(spark, broker, database)
    before = states(broker)
    assert 0 in before.values()
    # Other tasks of the killed round may still run.
    assert settle(spark, broker, database).seen <= list(before.values()).count(0)
    assert is_settled(broker)


@pytest.mark.usefixtures("many_tasks")
def test_a_task_that_is_tried_again_decides_what_is_left(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "escrowmq.pipeline.settle.plan.SettleTask",
        lambda known, sights: Dying(SettleTask(known, sights), 1, attempts=1),
    )
    done = settle(spark, broker, database)
    assert is_settled(broker)
    # The work of the first attempts is done, but not counted.
    assert 0 < done.committed + done.rolled_back < COUNT


def test_an_answer_that_is_lost_leaves_it_to_the_next_round(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    known = ledgers(database).known()
    (uuid,) = known.urls
    assert uuid == database.uuid
    broker.stop()
    done = settling.settle_round(spark, ["127.0.0.1:1"], ledgers(database))
    assert (done.brokers, done.away, done.seen) == (0, ("127.0.0.1:1",), 0)
    broker.start()
    settle(spark, broker, database)
    assert is_settled(broker)
