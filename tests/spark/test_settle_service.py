"""The service settles as soon as something is due, and runs no job otherwise."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.model.clock import SystemClock
from escrowmq.pipeline.archive.rounds import append_rounds
from escrowmq.pipeline.config import PipelineConfig, Places
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import SETTLE_ROUNDS
from escrowmq.pipeline.service.jobs import SparkJobs
from escrowmq.pipeline.service.service import PipelineService
from escrowmq.testing import InProcessBroker
from tests.spark.settle_shop import LATE_S, Database, hold, jobs_begun, settle, states
from tests.unit.broker.wire import eventually
from tests.unit.logged import event_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTED, ROLLED_BACK = 1, 2
#: No test waits this long.
NEVER_MS = 3_600_000
STOP_S = 20.0


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


@contextmanager
def serving(
    spark: SparkSession, broker: InProcessBroker, database: Database, folder: Path
) -> Iterator[PipelineService]:
    """Run the service of ``escrowmq pipeline``; it only settles, and polls for news often."""
    config = PipelineConfig(
        brokers=broker.broker_address,
        settle_interval_ms=NEVER_MS,
        archive=False,
        compare=False,
        archive_interval_ms=100,
    )
    places = Places(
        lake=str(folder / "lake"), checkpoints=str(folder / "c"), cache=folder / "cache"
    )
    jobs = SparkJobs(spark, config, places, {"shop": LedgerConfig(url=database.url)})
    service = PipelineService(config, jobs, clock=SystemClock())
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.stop()
        thread.join(STOP_S)
        assert not thread.is_alive()


async def test_a_round_starts_at_once_when_the_broker_says_so_and_no_job_runs_before(
    spark: SparkSession,
    broker: InProcessBroker,
    database: Database,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hold(broker, ["there", "absent"], ledger=database.uuid)
    hold(broker, ["strange"], ledger="another ledger")
    database.commit("there")
    before = jobs_begun(spark)
    with (
        caplog.at_level(logging.INFO, logger="escrowmq"),
        serving(spark, broker, database, tmp_path) as service,
    ):
        told = service.telemetry
        facts = told.brokers[broker.broker_address]
        await eventually(lambda: facts.undecided == 3)
        first_at_ms = facts.heard_at_ms
        await eventually(lambda: facts.heard_at_ms > first_at_ms)
        assert (told.settle.runs, jobs_begun(spark)) == (0, before)
        broker.advance(seconds=LATE_S)
        await eventually(lambda: told.settle.runs)
        assert jobs_begun(spark) > before
        summary, metrics = told.settle.last, told.metrics()
    assert states(broker) == {"there": COMMITTED, "absent": ROLLED_BACK, "strange": 0}
    expected = {
        "seen": 3,
        "waiting": 0,
        "asked": 0,
        "committed": 1,
        "rolled_back": 1,
        "parked": 0,
        "no_producer": 1,
        "no_ledger": 1,
    }
    assert summary.items() >= expected.items()
    # The same numbers go to the log, to Prometheus and to the lake.
    (line,) = [vars(line) for line in caplog.records if event_of(line) == "settle_done"]
    assert {name: line[name] for name in summary if name in expected} == expected
    assert line["took_ms"] == summary["took_ms"]
    for name, number in expected.items():
        assert f"escrowmq_pipeline_settle_{name}_total {number}\n" in metrics
    lake = Lake(tmp_path / "lake")
    append_rounds(lake, [summary])
    (row,) = lake.open(SETTLE_ROUNDS).to_pyarrow_table().to_pylist()
    assert {**json.loads(row["detail"]), **row}.items() >= expected.items()
    assert row["took_ms"] == summary["took_ms"]


def test_with_nothing_due_a_round_counts_and_runs_no_job(
    spark: SparkSession, broker: InProcessBroker, database: Database
) -> None:
    hold(broker, ["a", "b"], ledger=database.uuid)
    before = jobs_begun(spark)
    done = settle(spark, broker, database)
    assert (done.seen, done.waiting, jobs_begun(spark)) == (2, 2, before)
    broker.advance(seconds=LATE_S)
    assert settle(spark, broker, database).rolled_back == 2
    assert jobs_begun(spark) > before
