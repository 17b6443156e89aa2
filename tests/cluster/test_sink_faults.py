"""The sink on two hosts: the faults that only a cluster can cause."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest
from pyspark.sql import functions as F  # noqa: N812

from escrowmq.testing import InProcessBroker
from tests.cluster.cluster import HOSTS, Cluster
from tests.cluster.drivers import Drivers
from tests.spark.faulty_sink import FORMAT, FaultySink
from tests.spark.settled import rolled_back
from tests.spark.streams import TOPIC, Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The steps where a driver is killed, in the order of a batch.
STEPS = [
    "open:kill",
    "write.rows:kill",
    "write.after:kill",
    "commit.before:kill",
    "commit.before:raise,abort.before:kill",
    "commit.after:kill",
]


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def bodies(broker: InProcessBroker) -> Counter[str]:
    return Counter(message.body.decode() for message in broker.messages(TOPIC))


def each_once(count: int) -> Counter[str]:
    return Counter(str(number) for number in range(count))


def write(frame: DataFrame, broker: InProcessBroker, **options: str) -> None:
    frame.sparkSession.dataSource.register(FaultySink)
    writer = frame.write.format(FORMAT).mode("append")
    writer.options(broker=broker.broker_address, topic=TOPIC, **options).save()


def rows(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").cast("string").alias("body"))


def host_of_task(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the host that this task runs on."""
    yield pa.record_batch({"host": [os.environ["SPARK_LOCAL_IP"]]})


@pytest.mark.slice
def test_tasks_run_on_both_hosts(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster
) -> None:
    """The other tests here prove nothing unless tasks run on both hosts."""
    assert all(cluster.is_alive(host) for host in HOSTS)
    found = rows(spark, 1_000, 8).mapInArrow(host_of_task, "host string").collect()
    assert {row["host"] for row in found} == set(HOSTS)
    write(rows(spark, 1_000, 8), broker)
    assert bodies(broker) == each_once(1_000)


def test_of_a_task_and_its_speculative_copy_one_counts(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path
) -> None:
    """The first task has written everything and hangs; its copy overtakes it."""
    write(
        rows(spark, 100),
        broker,
        fault="write.after:hang",
        once=str(tmp_path / "once"),
        until=str(tmp_path / "never"),
    )
    assert bodies(broker) == each_once(100)
    assert len(broker.undecided()) == 1
    assert rolled_back(spark, broker.broker_address) == 1
    assert bodies(broker) == each_once(100)


def stage_attempts(spark: SparkSession, job_group: str) -> list[int]:
    """Return, for each stage of these jobs, how often it was run again."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(job_group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    return [stage.currentAttemptId for stage in stages if stage]


@pytest.mark.slice
def test_a_host_dies_in_the_middle_and_a_stage_is_run_again(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster, tmp_path: Path
) -> None:
    """The shuffle output of that host is lost, so Spark must run the stage before again."""
    shuffled = rows(spark, 400, 4).repartition(4, "body")
    spark.sparkContext.setJobGroup(tmp_path.name, "")
    once = tmp_path / "once"
    victim = str(cluster.session(HOSTS[1]))
    write(shuffled, broker, fault="write.rows:kill", victims=victim, once=str(once))
    assert once.exists()
    assert not cluster.is_alive(HOSTS[1])
    assert max(stage_attempts(spark, tmp_path.name)) > 0
    assert bodies(broker) == each_once(400)
    rolled_back(spark, broker.broker_address)
    assert broker.undecided() == []
    assert bodies(broker) == each_once(400)


def stream_of(spark: SparkSession, broker: InProcessBroker, folder: Path) -> Stream:
    stream = Stream(spark, folder, broker.broker_address)
    for start in range(0, 30, 10):
        stream.add(*range(start, start + 10))
    return stream


def test_a_driver_dies_between_the_brokers_commit_and_sparks(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster, tmp_path: Path
) -> None:
    drivers = Drivers(cluster, stream_of(spark, broker, tmp_path), tmp_path)
    assert drivers.run("commit.after:kill") == -signal.SIGKILL
    assert list(bodies(broker).values()) == [1] * 10
    assert drivers.run() == 0
    assert bodies(broker) == each_once(30)
    rolled_back(spark, broker.broker_address)
    assert broker.undecided() == []


def test_a_driver_dies_at_every_step_of_a_batch(
    spark: SparkSession, broker: InProcessBroker, cluster: Cluster, tmp_path: Path
) -> None:
    drivers = Drivers(cluster, stream_of(spark, broker, tmp_path), tmp_path)
    for step in STEPS:
        assert drivers.run(step) == -signal.SIGKILL
        rolled_back(spark, broker.broker_address)
        assert list(bodies(broker).values()) in ([], [1] * 10)
    assert drivers.run() == 0
    assert bodies(broker) == each_once(30)
    rolled_back(spark, broker.broker_address)
    assert broker.undecided() == []
