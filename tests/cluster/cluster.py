"""A real Spark cluster on this machine, from the pip package: a master and two workers.

The workers listen on 127.0.0.1 and 127.0.0.2, which Spark treats as two hosts. All of them end with
this process, however it ends. A test can kill a worker with everything that runs on its host.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.java import java_home
from escrowmq.pipeline.spark.session import spark_session
from tests.interop.child import Child
from tests.spark.sessions import kill_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
HOSTS = ("127.0.0.1", "127.0.0.2")
#: Enough for two applications at a time, each with one core on each host.
CORES_PER_HOST = 2
CORES_PER_APPLICATION = 2
START_S_MAX = 120.0
#: Short jobs do not repay the cost of the optimizing compiler.
QUICK = "-XX:TieredStopAtLevel=1"
JVM_OPTIONS = f"{QUICK} -XX:+UseSerialGC"
PYTHON_PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])


class Cluster:
    """A master and two workers. Use it in a ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = 0
        self._master: Child | None = None
        self._workers: dict[str, Child] = {}
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in HOSTS:
            self.kill_host(host)
        if self._master is not None:
            self._master.kill()

    def _start(self) -> None:
        self._master = self._spawn("master.Master", "--port", "0", host=HOSTS[0])
        (self.url,) = self._said(self._master, r"(spark://\S+:[0-9]+)", 1)
        for host in HOSTS:
            self.start_worker(host)
        # Both workers must be registered before both can get work.
        self._said(self._master, r"Registering worker (\S+):[0-9]+ with", len(HOSTS))

    def start_worker(self, host: str) -> None:
        """Start a worker on this host, and replace the one that died."""
        self.kill_host(host)
        work = self.folder / f"work-{host}"
        size = ("--cores", str(CORES_PER_HOST), "--memory", "2g", "--work-dir", str(work))
        worker = self._spawn("worker.Worker", *size, self.url, host=host)
        self._workers[host] = worker
        self._said(worker, r"(Successfully registered with master)", 1)

    def kill_host(self, host: str) -> None:
        """Kill the worker and its executors at once."""
        worker = self._workers.pop(host, None)
        if worker is not None:
            kill_session(worker.pid)
            worker.kill()

    def session(self, host: str) -> int:
        """Return the process session that dies with a host."""
        return self._workers[host].pid

    def sessions(self) -> list[int]:
        """Return the process sessions of the master and all workers."""
        assert self._master is not None
        return [self._master.pid, *(worker.pid for worker in self._workers.values())]

    def is_alive(self, host: str) -> bool:
        """Return whether the worker runs."""
        return host in self._workers and self._workers[host].is_running()

    def _spawn(self, role: str, *arguments: str, host: str) -> Child:
        import pyspark

        self._started += 1
        name = f"{self._started}-{role.partition('.')[0]}-{host}"
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        place = ("--host", host, "--webui-port", "0")
        return Child(
            name,
            [spark_class, f"org.apache.spark.deploy.{role}", *place, *arguments],
            log=self.folder / f"{name}.log",
            environment=self._environment(host),
        )

    def _environment(self, host: str) -> dict[str, str]:
        return {
            "JAVA_HOME": str(java_home(self.folder / "cache")),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.folder / f"local-{host}"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "SPARK_LAUNCHER_OPTS": JVM_OPTIONS,
            "PYTHONPATH": PYTHON_PATH,
        }

    def _said(self, process: Child, pattern: str, count: int) -> list[str]:
        """Wait until a process has logged the pattern this many times; return the matches."""

        def found() -> list[str]:
            text = process.log.read_text(encoding="utf-8", errors="replace")
            return re.findall(pattern, text)

        wait_until(lambda: len(found()) >= count or not process.is_running(), pattern)
        if len(found()) < count:
            raise process.died()
        return found()[:count]


def wait_until(is_so: Callable[[], bool], what: str, timeout_s: float = START_S_MAX) -> None:
    """Wait for a condition that other processes bring about."""
    until = time.monotonic() + timeout_s
    nobody = threading.Event()
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"after {timeout_s} s there is still no {what}")
        nobody.wait(0.02)


def cluster_options() -> str:
    """Return a driver's Spark options, in the form of ``pipeline.spark_options``."""
    options = {
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.cores.max": str(CORES_PER_APPLICATION),
        "spark.executor.extraJavaOptions": JVM_OPTIONS,
        "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
        "spark.pyspark.python": sys.executable,
        # Retry a failed task once.
        "spark.task.maxFailures": "2",
        # Start a second copy of a task that hangs, on another host.
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "5s",
    }
    return shlex.join(f"{name}={value}" for name, value in options.items())


def cluster_session(url: str, folder: Path) -> SparkSession:
    """Start a driver in this process, as the pipeline starts one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = PipelineConfig(
        master=url,
        lake_uri=str(folder / "lake"),
        checkpoint_uri=str(folder / "checkpoints"),
        executor_memory_mb=512,
        executor_cores=1,
        shuffle_partitions=2,
        spark_options=cluster_options(),
    )
    # Use the packaged Java even if the host has one, so that every run is the same.
    os.environ.pop("JAVA_HOME", None)
    return spark_session(config, cache=folder / "cache", scratch=folder, jvm_options=(QUICK,))


def spread(spark: SparkSession) -> None:
    """Put the driver's executors on both hosts again after one of them was away.

    Spark has long replaced a dead host's executor on the other host, and does not move it back by
    itself.
    """
    context = spark.sparkContext._jsc.sc()  # Spark has no public way to list its executors

    def hosts() -> list[str]:
        """Return the hosts of the executors and of the driver, which Spark lists as an executor."""
        return sorted(one.host() for one in context.statusTracker().getExecutorInfos())

    wanted = sorted([*HOSTS, HOSTS[0]])
    wait_until(lambda: len(hosts()) == len(wanted), "executor for each host")
    if hosts() != wanted:
        context.killAndReplaceExecutor(context.getExecutorIds().apply(0))
        wait_until(lambda: hosts() == wanted, "executor on each host")
