"""Settings and environment for the start of Spark. tests/spark starts it with them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import environment, settings, spark_session

CLUSTER = PipelineConfig(
    master="spark://host:7077",
    lake_uri="/shared/lake",
    checkpoint_uri="/shared/checkpoints",
    executor_cores=2,
    executor_memory_mb=2_048,
)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a stand-in for Java that exits at once."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path


def test_workers_run_this_python_and_the_java_that_works(java: Path) -> None:
    variables = environment(PipelineConfig(), None)
    assert variables["JAVA_HOME"] == str(java)
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.usefixtures("java")
def test_a_cluster_may_have_another_python() -> None:
    config = PipelineConfig(spark_options="spark.pyspark.python=/opt/python")
    assert environment(config, None)["PYSPARK_PYTHON"] == "/opt/python"


@pytest.mark.usefixtures("java")
def test_only_on_one_machine_everybody_is_called_by_the_loopback_address() -> None:
    assert environment(PipelineConfig(), None)["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert "SPARK_LOCAL_IP" not in environment(CLUSTER, None)


@pytest.mark.usefixtures("java")
def test_on_one_machine_workers_take_the_installed_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Path(environment(PipelineConfig(), tmp_path / "cache")["SPARK_HOME"])
    assert sorted(part.name for part in home.iterdir()) == ["bin", "jars"]
    assert (home / "bin" / "spark-submit").is_file()
    assert "SPARK_HOME" not in environment(CLUSTER, None)
    # Our own SPARK_HOME may be created again elsewhere. A user's SPARK_HOME stays.
    monkeypatch.setenv("SPARK_HOME", str(home))
    again = environment(PipelineConfig(), tmp_path / "other")["SPARK_HOME"]
    assert Path(again).is_relative_to(tmp_path / "other")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "SPARK_HOME" not in environment(PipelineConfig(), tmp_path)


def test_the_heap_is_bounded_and_options_may_have_blanks() -> None:
    told = settings(PipelineConfig(driver_memory_mb=700), ("-Da=b c",))
    assert told["spark.driver.memory"] == "700m"
    assert shlex.split(told["spark.driver.extraJavaOptions"])[-1] == "-Da=b c"


def test_executors_are_set_up_in_a_cluster_only() -> None:
    told = settings(CLUSTER)
    assert (told["spark.executor.memory"], told["spark.executor.cores"]) == ("2048m", "2")
    # These tests run from sources, so the cluster's machines need their path.
    assert (Path(told["spark.executorEnv.PYTHONPATH"]) / "escrowmq" / "pipeline").is_dir()
    assert not [name for name in settings(PipelineConfig()) if name.startswith("spark.executor")]


def test_without_spark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)  # Makes the import fail.
    with pytest.raises(RequestRefused, match=r"escrowmq\[spark\]") as refused:
        spark_session(PipelineConfig())
    assert refused.value.code == "spark_missing"
