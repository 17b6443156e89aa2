"""The jobs that the service runs, and the Spark session that they run on."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.look_up.ledger_config import LedgerConfig
from escrowmq.pipeline.config import PipelineConfig, Places
from escrowmq.pipeline.service.runs import ARCHIVE, COMPARE, SETTLE
from escrowmq.pipeline.service.telemetry import Facts
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

#: The oldest summaries are dropped first.
ROUNDS_MAX = 10_000

REPORT = "report"


class Jobs(Protocol):
    """The jobs of the service. Each method is called from one thread at a time."""

    def settle(self) -> Facts:
        """Run one round."""

    def report_ledgers(self) -> None:
        """Report to the brokers which ledgers can be reached.

        May run at the same time as ``settle``.
        """

    def compare(self) -> Facts:
        """Compare new half and op records with the state stores."""

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        """Archive new data, together with these summaries of rounds."""

    def keep_up(self, today: date) -> Facts:
        """Compact small files of the lake, and delete rows that are past retention on this day."""

    def progress(self) -> object:
        """A value that changes when consumers have advanced."""

    def cancel(self, name: str) -> None:
        """Cancel the running round of this kind."""

    def tidy(self) -> None:
        """Free memory."""

    def is_alive(self) -> bool:
        """Whether the jobs can still run."""


class SparkJobs:
    """Settles and archives for all configured brokers, on one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        places: Places,
        ledgers: Mapping[str, LedgerConfig],
    ) -> None:
        from escrowmq.look_up.ledgers import Ledgers
        from escrowmq.pipeline.archive.archiving import Archive
        from escrowmq.pipeline.compare.rounds import Comparing
        from escrowmq.pipeline.lake.delta import Lake
        from escrowmq.pipeline.settle.settling import Settling

        self._spark = spark
        self._brokers = config.broker_addresses
        asks_max = config.check_budget_per_group
        self._settling = Settling(spark, Ledgers(ledgers), asks_max=asks_max)
        self.rounds = self._settling.progress
        self._comparing = Comparing(spark, places.checkpoints, pipeline=self.rounds.pipeline)
        self._lake = Lake(places.lake)
        self._retention_days = config.lake_retention_days
        self._archive = Archive(
            spark,
            self._brokers,
            places.lake,
            places.checkpoints,
            interval_ms=config.archive_interval_ms,
        )
        #: Summaries of rounds that are not in the lake yet.
        self._rounds: deque[Facts] = deque(maxlen=ROUNDS_MAX)

    def settle(self) -> Facts:
        """Run one round."""
        self._join(SETTLE)
        return facts_of(self._settling.round(self._brokers))

    def report_ledgers(self) -> None:
        """Report to the brokers which ledgers can be reached."""
        self._settling.report(self._brokers)

    def compare(self) -> Facts:
        """Compare new half and op records with the state stores."""
        self._join(COMPARE)
        return facts_of(self._comparing.round(self._brokers))

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        """Archive new data, together with these summaries of rounds."""
        from escrowmq.pipeline.archive.rounds import append_rounds

        self._join(ARCHIVE)
        self._rounds += rounds
        append_rounds(self._lake, tuple(self._rounds))
        self._rounds.clear()
        return facts_of(self._archive.run())

    def archive_once(self, rounds: Sequence[Facts]) -> Facts:
        """Like ``archive``, but leave nothing running."""
        from escrowmq.pipeline.archive.rounds import append_rounds

        append_rounds(self._lake, rounds)
        return facts_of(self._archive.once())

    def keep_up(self, today: date) -> Facts:
        """Compact small files of the lake and delete rows past retention.

        This does not use Spark.
        """
        from escrowmq.pipeline.lake.upkeep import keep_up

        return facts_of(keep_up(self._lake, today=today, retention_days=self._retention_days))

    def progress(self) -> object:
        """The sum of all consumer groups' offsets, and the number of these offsets."""
        import pyarrow.compute as pc  # type: ignore[import-untyped]  # it brings no types

        read = places = 0
        for address in self._brokers:
            with NativeCalls(address) as calls:
                for page in calls.arrow_pages(NativeCode.LIST_OFFSETS):
                    read += pc.sum(page.batch.column("offset")).as_py() or 0
                    places += page.batch.num_rows
        return read, places

    def cancel(self, name: str) -> None:
        """Cancel the running round of this kind."""
        self._spark.sparkContext.cancelJobGroup(name)

    def tidy(self) -> None:
        """Stop the queries that wait for new messages, and make the JVM free unused heap."""
        self._archive.rest()
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 -- Spark has no public access to it
        jvm.System.gc()

    def is_alive(self) -> bool:
        """Whether the driver's JVM is running."""
        return java_of(self._spark).poll() is None

    def _join(self, name: str) -> None:
        """Run this thread's next Spark jobs in a fair-scheduler pool and job group of this name."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", name)
        context.setJobGroup(name, name)


def java_of(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The process of the driver's JVM."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- Spark has no public access to its JVM
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    return java


def facts_of(summary: object) -> Facts:
    """A summary as a mapping from names to values."""
    if dataclasses.is_dataclass(summary) and not isinstance(summary, type):
        return dataclasses.asdict(summary)
    assert isinstance(summary, msgspec.Struct), f"{type(summary)} is no summary"
    return msgspec.structs.asdict(summary)
