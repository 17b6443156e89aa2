"""A program as users write it, run by the Python of a virtual environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import escrowmq.spark
from escrowmq.pipeline.spark.java import java_home
from escrowmq.testing import InProcessBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import escrowmq.spark
from escrowmq.testing import InProcessBroker

{start}
with InProcessBroker() as broker:
    given = {{"broker": broker.broker_address, "topic": "orders"}}
    broker.create_topic("orders")
    orders = spark.createDataFrame([("1",), ("2",)], "body string")
    orders.write.format("escrowmq").mode("append").options(**given).save()
    assert spark.read.format("escrowmq").options(**given).load().count() == 2
    try:
        orders.write.format("escrowmq").options(**given).save()
    except AnalysisException as refused:
        (note,) = refused.__notes__
        assert '.mode("append")' in note
    else:
        raise AssertionError("a write without a mode was taken")
spark.stop()
"""
REGISTERED = """
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.getOrCreate()
escrowmq.spark.register(spark)
escrowmq.spark.register(spark)
"""
STARTED = """
settings = {"spark.ui.enabled": "false"}
spark = escrowmq.spark.session("local[1]", app_name="orders", options=settings)
assert spark.conf.get("spark.app.name") == "orders"
"""


@pytest.mark.parametrize("start", [REGISTERED, STARTED], ids=["registered", "started"])
def test_the_format_is_there_with_another_python_on_the_path(start: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(start=start), encoding="utf-8")
    # A python3 without any packages, like the system's.
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK", "SPARK", "PYTHON", "JAVA"))
    }
    given = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "JAVA_HOME": str(java_home(tmp_path / "cache")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**kept, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_a_session_that_is_there_is_returned_with_the_format(spark: SparkSession) -> None:
    with pytest.MonkeyPatch.context() as variables:
        # Undo everything that the call sets after the test.
        for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
            variables.setenv(name, os.environ[name])
        session = escrowmq.spark.session(str(spark.sparkContext.master))
    assert session.sparkContext is spark.sparkContext
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        given = {"broker": broker.broker_address, "topic": "orders"}
        assert session.read.format("escrowmq").options(**given).load().count() == 0
