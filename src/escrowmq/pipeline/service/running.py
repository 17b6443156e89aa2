"""The process behind ``escrowmq pipeline``, from its settings to its exit code."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.model.clock import SystemClock
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.config import OFF, PipelineConfig, Places, is_local
from escrowmq.pipeline.priority import step_back
from escrowmq.pipeline.service.heartbeats import heartbeats
from escrowmq.pipeline.service.jobs import SparkJobs, java_of
from escrowmq.pipeline.service.lanes import beside
from escrowmq.pipeline.service.pages import StatusServer
from escrowmq.pipeline.service.service import EXIT_SPARK_DIED, PipelineService
from escrowmq.pipeline.spark.scratch import scratch_in
from escrowmq.pipeline.spark.start_cache import quick_session, training_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_log(__name__)

Say = Callable[[str], None]

#: How long after its start the service makes the start cache, so as not to slow the start.
TRAIN_AFTER_S = 30.0
#: How long Spark may take to stop before its JVM is killed.
STOP_S_MAX = 10.0


def run(
    config: PipelineConfig, places: Places, ledgers: Mapping[str, LedgerConfig], say: Say
) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit code."""
    with _spark(config, places) as spark:
        jobs = SparkJobs(spark, config, places, ledgers)
        service = PipelineService(config, jobs, clock=SystemClock())
        beating = heartbeats(config.broker_addresses, jobs.rounds, round_ms_max=config.round_ms_max)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        pages = None
        if config.http_port != OFF:
            pages = StatusServer(config.http_host, config.http_port, service.telemetry)
        _on_end(java_of(spark), lambda: service.stop(EXIT_SPARK_DIED))
        with _training(places.cache), beating:
            told = {
                "master": config.master,
                "brokers": config.brokers,
                "lake": places.lake if config.archive else "off",
                "http": pages.address if pages else "off",
            }
            say(f"ready {' '.join(f'{name}={value}' for name, value in told.items())}")
            exit_code = service.run()
        if pages is not None:
            pages.close()
    if exit_code == EXIT_SPARK_DIED:
        log.error("spark_died", extra={"master": config.master})
    return exit_code


def run_once(
    config: PipelineConfig, places: Places, ledgers: Mapping[str, LedgerConfig], say: Say
) -> None:
    """Run one settle round, one comparison, one archive run, and the lake's upkeep."""
    with _spark(config, places) as spark:
        jobs = SparkJobs(spark, config, places, ledgers)
        settled = jobs.settle()
        say(_line("settled", settled))
        if config.compare:
            say(_line("compared", jobs.compare()))
        if config.archive:
            say(_line("archived", jobs.archive_once([settled])))
            say(_line("kept_up", jobs.keep_up(datetime.now(UTC).date())))


def _line(word: str, facts: Mapping[str, object]) -> str:
    return " ".join([word, *(f"{name}={value}" for name, value in facts.items())])


@contextmanager
def _spark(config: PipelineConfig, places: Places) -> Iterator[SparkSession]:
    if is_local(config.master):
        step_back(config.niceness)
    with scratch_in(places.cache) as scratch:
        spark = quick_session(config, cache=places.cache, scratch=scratch)
        try:
            yield spark
        finally:
            _end(spark)


def _end(spark: SparkSession) -> None:
    """Stop Spark and its JVM. This may interrupt running work at any point."""
    # For an interrupted batch, py4j would log the stack traces of two languages.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    java = java_of(spark)
    if java.poll() is None:
        stopping = threading.Thread(target=_stop, args=(spark,), daemon=True)
        stopping.start()
        stopping.join(STOP_S_MAX)
    assert java.stdin is not None
    with suppress(OSError):
        java.stdin.close()
    try:
        java.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()


def _stop(spark: SparkSession) -> None:
    with suppress(Exception):  # The JVM may be dead or busy.
        spark.stop()


def _on_end(process: subprocess.Popen[bytes], tell: Callable[[], None]) -> None:
    def wait() -> None:
        process.wait()
        tell()

    threading.Thread(target=wait, name="java", daemon=True).start()


def _training(cache: Path) -> AbstractContextManager[None]:
    """Make the start cache some time after the start, if there is none."""

    def train(ending: threading.Event) -> None:
        if ending.wait(TRAIN_AFTER_S):
            return
        command = training_command(cache)
        if command is None:
            return
        # A separate process group, so that its JVM, which would keep writing, can be killed too.
        with subprocess.Popen(  # noqa: S603 -- our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ) as process:
            while process.poll() is None:
                if ending.wait(1.0):
                    os.killpg(process.pid, signal.SIGKILL)
        log.info("start_cache_trained", extra={"exit_code": process.returncode})

    return beside("training", train, stop_s_max=STOP_S_MAX)
