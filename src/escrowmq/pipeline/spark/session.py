"""Starts Spark from the packages that ``pip install`` brings, locally or as a cluster's driver.

These settings suit a small, long-running service beside a broker: a bounded heap, a garbage
collector that returns memory, no web UI, few partitions. ``pipeline.spark_options`` overrides all
of them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.pipeline.config import (
    PipelineConfig,
    is_local,
    spark_missing,
    spark_options_of,
    user_cache,
)
from escrowmq.pipeline.spark.home import VARIABLE as SPARK_HOME
from escrowmq.pipeline.spark.home import spark_home
from escrowmq.pipeline.spark.java import java_home
from escrowmq.pipeline.spark.registering import PYTHON_VARIABLE, register
from escrowmq.pipeline.spark.save_mode import explain_save_mode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP_NAME = "escrowmq"
LOOPBACK = "127.0.0.1"
#: Names of folders that hold installed packages.
INSTALLED = ("site-packages", "dist-packages")

JVM_OPTIONS = (
    # An operator's Java may be older than the one that we install.
    "-XX:+IgnoreUnrecognizedVMOptions",
    # One thread, the smallest footprint, and unused heap returns to the operating system.
    "-XX:+UseSerialGC",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-XX:+UseCompactObjectHeaders",
    "-XX:ReservedCodeCacheSize=128m",
    # The JVM writes its counters to a file in /tmp all the time, for tools that are not used here.
    "-XX:-UsePerfData",
    # A dead process is better than a crippled one: `escrowmq up` restarts it.
    "-XX:+ExitOnOutOfMemoryError",
    # Turns off Java's own warnings, such as those about an outdated start cache.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}",
)


def spark_session(
    config: PipelineConfig,
    *,
    cache: Path | None = None,
    scratch: Path | None = None,
    jvm_options: tuple[str, ...] = (),
    further: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the session that this process has.

    Runs once, on the driver. It sets environment variables of this process, which the JVM and the
    workers inherit. `cache` is where the scripts for Java are kept, by default the user's cache
    directory. `scratch` is for Spark's temporary files, by default the system's temporary
    directory. `jvm_options` and `further` settings come after ours.

    Raises:
        RequestRefused: ``spark_missing``.
        Unavailable: ``java_missing``.
    """
    builder = _builder(config.master, APP_NAME)
    os.environ.update(environment(config, cache))
    if scratch is not None:
        jvm_options += (f"-Djava.io.tmpdir={scratch}",)
    options = settings(config, jvm_options)
    if scratch is not None:
        options |= {name: str(scratch) for name in ("spark.local.dir", "spark.sql.warehouse.dir")}
    options |= {**(further or {}), **spark_options_of(config.spark_options)}
    explain_save_mode()
    return builder.config(map={**options}).getOrCreate()


def session(
    master: str = "local[*]",
    *,
    app_name: str = APP_NAME,
    options: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark for your own program, or return the session that the program has.

    Spark runs with its own defaults, with this Python and with ``format("escrowmq")``. It uses the
    Java that ``escrowmq[spark]`` installs, unless ``JAVA_HOME`` names one that works. `options` are
    Spark settings, such as ``{"spark.driver.memory": "2g"}``.

    Runs once, on the driver. It sets environment variables of this process, which the JVM and the
    workers inherit.

    Raises:
        RequestRefused: ``spark_missing``.
        Unavailable: ``java_missing``.
    """
    builder = _builder(master, app_name)
    given = dict(options or {})
    python = given.get("spark.pyspark.python") or os.environ.get(PYTHON_VARIABLE, "")
    os.environ.update(variables(master, python, None))
    spark = builder.config(map={**given}).getOrCreate()
    register(spark)
    return spark


def _builder(master: str, app_name: str) -> SparkSession.Builder:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise spark_missing() from error
    return SparkSession.builder.master(master).appName(app_name)


def environment(config: PipelineConfig, cache: Path | None) -> dict[str, str]:
    """The environment variables that Spark's scripts and workers need for the pipeline."""
    python = spark_options_of(config.spark_options).get("spark.pyspark.python", "")
    return {
        **variables(config.master, python, cache),
        # Spark's start script starts Java twice. The first Java only assembles a command line.
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Each malloc arena keeps its peak memory, and a few threads do most of the work.
        "MALLOC_ARENA_MAX": "2",
    }


def variables(master: str, python: str, cache: Path | None) -> dict[str, str]:
    """The environment variables that Spark needs to start, and its workers to find our packages.

    `python` is the workers' interpreter; empty means this one.
    """
    found = {
        "JAVA_HOME": str(java_home(cache)),
        # By default workers use the python of the PATH, which may lack our packages.
        PYTHON_VARIABLE: python or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if is_local(master):
        # This machine's host name may not resolve, and no other machine needs to reach it.
        found["SPARK_LOCAL_IP"] = LOOPBACK
        # Only locally: a cluster may need the zip that `spark_home` leaves out.
        home = spark_home(cache or user_cache())
        if home is not None:
            found[SPARK_HOME] = str(home)
    return found


def settings(config: PipelineConfig, jvm_options: tuple[str, ...] = ()) -> dict[str, str]:
    """The Spark settings of the pipeline."""
    return {
        "spark.driver.memory": f"{config.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": shlex.join((*JVM_OPTIONS, *jvm_options)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "false",
        # A settle round must not wait for a long archive run.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.shuffle.partitions": str(config.shuffle_partitions),
        **({} if is_local(config.master) else _of_executors(config)),
    }


def _of_executors(config: PipelineConfig) -> dict[str, str]:
    of_executors = {"spark.executor.memory": f"{config.executor_memory_mb}m"}
    if config.executor_cores:
        of_executors["spark.executor.cores"] = str(config.executor_cores)
    folder = Path(__file__).resolve().parents[3]
    if folder.name not in INSTALLED:
        # This runs from a source tree, so the cluster's machines have no installed copy.
        of_executors["spark.executorEnv.PYTHONPATH"] = str(folder)
    return of_executors
