"""``escrowmq pipeline`` as a separate process whose work runs on a cluster."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import HOSTS, ROOT, Cluster, cluster_options, wait_until
from tests.cluster.deadly import DeadlyWay
from tests.interop.child import Child
from tests.spark.sessions import kill_session, processes_of
from tests.spark.settle_shop import LATE_S, Database, hold, visible

END_S_MAX = 120.0


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(path=tmp_path / "shop.db")


class Pipeline:
    """Runs the pipeline command with the settings of this cluster."""

    def __init__(self, folder: Path, master: str, database: Database) -> None:
        self.lake = folder / "lake"
        self._folder = folder
        self._master = master
        self._environment = {"ESCROWMQ_LEDGER__SHOP__URL": database.url, "JAVA_HOME": ""}

    @contextmanager
    def run(self, brokers: str, *flags: str, **settings: str) -> Iterator[Child]:
        """Run the command in the block; none of its processes is left after that."""
        settings = {
            "lake_uri": str(self.lake),
            "checkpoint_uri": str(self._folder / "checkpoints"),
            "cache_dir": str(self._folder / "cache"),
            "executor_memory_mb": "512",
            "executor_cores": "1",
            "spark_options": cluster_options(),
            "settle_interval_ms": "500",
            "archive_interval_ms": "500",
        } | settings
        given = [f"--set=pipeline.{name}={value}" for name, value in settings.items() if value]
        command = [sys.executable, "-m", "escrowmq.cli.main", "pipeline"]
        process = Child(
            "pipeline",
            [*command, "--master", self._master, "--brokers", brokers, *given, *flags],
            log=self._folder / "pipeline.log",
            environment=self._environment,
            directory=ROOT,
        )
        try:
            yield process
        finally:
            kill_session(process.pid)
            process.kill()

    def archived(self) -> list[bytes]:
        """Return the bodies in the lake."""
        table = Lake(self.lake).find(MESSAGES)
        return [] if table is None else sorted(table.to_pyarrow_table()["body"].to_pylist())


@pytest.fixture
def pipeline(cluster: Cluster, tmp_path: Path, database: Database) -> Pipeline:
    return Pipeline(tmp_path, cluster.url, database)


def hold_and_pay(broker: InProcessBroker, database: Database, *ids: str) -> None:
    """Hold transactions whose outcome only the ledger knows."""
    hold(broker, ids, ledger=database.uuid)
    database.commit(*ids)
    broker.advance(seconds=LATE_S)


@pytest.mark.slice
def test_one_round_and_one_archive_run_and_a_host_dies(
    cluster: Cluster, broker: InProcessBroker, database: Database, pipeline: Pipeline
) -> None:
    hold_and_pay(broker, database, "a", "b")
    hold(broker, ["young"], ledger=database.uuid)
    with (
        DeadlyWay(broker.broker_address, cluster, NativeCode.OBEY_VERDICTS) as way,
        pipeline.run(way.address, "--once") as process,
    ):
        said = process.stdout.read().decode()
        assert process.wait(END_S_MAX) == 0
        assert way.victim
        wait_until(lambda: processes_of(process.pid) == [], "end of its processes")
    assert re.search(r"^settled .*\bbrokers=1\b.*\baway=\(\)", said, re.MULTILINE)
    assert re.search(r"^archived .*'messages': 2\b.*is_complete=True", said, re.MULTILINE)
    assert visible(broker) == ["a", "b"]
    assert pipeline.archived() == [b"a", b"b"]


def test_a_service_goes_on_when_a_host_dies(
    cluster: Cluster, broker: InProcessBroker, database: Database, pipeline: Pipeline
) -> None:
    with pipeline.run(broker.broker_address) as process:
        assert process.stdout.readline().startswith(b"ready master=spark://")
        hold_and_pay(broker, database, "a")
        wait_until(lambda: visible(broker) == ["a"], "first round")
        cluster.kill_host(HOSTS[1])
        hold_and_pay(broker, database, "b")
        wait_until(lambda: pipeline.archived() == [b"a", b"b"], "archive")
        assert visible(broker) == ["a", "b"]
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(END_S_MAX) == 0
        wait_until(lambda: processes_of(process.pid) == [], "end of its processes")


@pytest.mark.parametrize("missing", ["lake_uri", "checkpoint_uri"])
def test_without_a_place_that_all_machines_reach_it_does_not_start(
    broker: InProcessBroker, pipeline: Pipeline, missing: str
) -> None:
    with pipeline.run(broker.broker_address, "--once", **{missing: ""}) as process:
        assert process.wait(END_S_MAX) == 2
        assert process.stdout.read() == b""
        said = process.log.read_text(encoding="utf-8")
    assert "bad_config: a cluster needs a location that all of its machines reach" in said
    assert f"pipeline.{missing}" in said
