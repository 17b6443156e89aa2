"""What the service has others do, and the Spark session on which it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from escrowmq.client.own_calls import OwnCalls
from escrowmq.pipeline.config import PipelineConfig, Places
from escrowmq.pipeline.ledger_config import LedgerConfig
from escrowmq.pipeline.telemetry import Facts
from escrowmq.protocol.own import OwnCode

if TYPE_CHECKING:
    import subprocess

    from pyspark.sql import SparkSession

SETTLE = "settle"
ARCHIVE = "archive"


class Jobs(Protocol):
    """Each is called from one thread at a time."""

    def settle(self) -> Facts:
        """Run one round."""
        ...

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        """Take what is new into the lake, and these summaries of rounds with it."""
        ...

    def progress(self) -> object:
        """What is another value when consumers went on."""
        ...

    def cancel_settle(self) -> None:
        """Give the round up that is running."""
        ...

    def tidy(self) -> None:
        """Give memory back."""
        ...

    def is_alive(self) -> bool:
        """Whether there is any sense in going on."""
        ...


class SparkJobs:
    """Settles and archives for all brokers of the config, on one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        config: PipelineConfig,
        places: Places,
        ledgers: Mapping[str, LedgerConfig],
    ) -> None:
        from escrowmq.pipeline.ledgers import Ledgers
        from escrowmq.pipeline.settling import Settling

        self._spark = spark
        self._config = config
        self._places = places
        asks_max = config.check_budget_per_group
        self._settling = Settling(spark, Ledgers(ledgers), asks_max=asks_max)

    def settle(self) -> Facts:
        """Run one round."""
        self._join(SETTLE)
        return facts_of(self._settling.round(self._config.broker_addresses))

    def archive(self, rounds: Sequence[Facts]) -> Facts:
        """Take what is new into the lake, and these summaries of rounds with it."""
        from escrowmq.pipeline.archive import archive_once  # type: ignore[import-not-found]  # to come

        del rounds
        self._join(ARCHIVE)
        brokers = self._config.broker_addresses
        lake, checkpoints = self._places.lake, self._places.checkpoints
        return facts_of(archive_once(self._spark, brokers, lake, checkpoints))

    def progress(self) -> object:
        """The sum over what all consumer groups have read, and how many places that is."""
        import pyarrow.compute as pc  # type: ignore[import-untyped]  # it brings no types

        read = places = 0
        for address in self._config.broker_addresses:
            with OwnCalls(address) as calls:
                for page in calls.arrow_pages(OwnCode.LIST_OFFSETS):
                    read += pc.sum(page.batch.column("offset")).as_py() or 0
                    places += page.batch.num_rows
        return read, places

    def cancel_settle(self) -> None:
        """Give the round up that is running."""
        self._spark.sparkContext.cancelJobGroup(SETTLE)

    def tidy(self) -> None:
        """Have Java give back the heap that is free."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 -- Spark has no other way to it
        jvm.System.gc()

    def is_alive(self) -> bool:
        """Whether the driver's Java runs."""
        return java_of(self._spark).poll() is None

    def _join(self, name: str) -> None:
        """Have what this thread starts next share Spark fairly with the rest, by this name."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", name)
        context.setJobGroup(name, name)


def java_of(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The process of the driver's Java."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 -- Spark has no other way to its Java
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    return java


def facts_of(summary: object) -> Facts:
    """A summary as names and values."""
    if dataclasses.is_dataclass(summary) and not isinstance(summary, type):
        return dataclasses.asdict(summary)
    assert isinstance(summary, msgspec.Struct), f"{type(summary)} is no summary"
    return msgspec.structs.asdict(summary)
