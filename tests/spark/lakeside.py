"""A broker, a lake, and the archive between them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.archive.archiving import STREAMS, Archive, ArchiveSummary
from escrowmq.pipeline.archive.stream import ArchiveOptions, ArchiveStream
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import MESSAGES, LakeTable
from tests.spark.topics import row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.testing import InProcessBroker


class Lakeside:
    """Archives a broker into a lake, as often as a test needs."""

    def __init__(
        self,
        spark: SparkSession,
        broker: InProcessBroker,
        folder: Path,
        kinds: Sequence[type[ArchiveStream]] = STREAMS,
    ) -> None:
        self.broker = broker
        self.lake = Lake(folder / "lake")
        self.checkpoints = folder / "checkpoints"
        self._spark = spark
        self._kinds = kinds

    def archive(self, **options: Any) -> ArchiveSummary:  # noqa: ANN401 -- options are of all types
        """Archive everything that is there now."""
        return self.archiving(**options).once()

    def archiving(self, interval_ms: int = 1_000, **options: Any) -> Archive:  # noqa: ANN401 -- as above
        """Return an archive that can run repeatedly."""
        return Archive(
            self._spark,
            [self.broker.broker_address],
            self.lake.uri,
            str(self.checkpoints),
            ArchiveOptions(**options),
            interval_ms=interval_ms,
            kinds=self._kinds,
        )

    def send(self, *bodies: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        """Send ordinary messages."""
        send(self.broker, *(row(body, topic=topic, queue_id=queue_id) for body in bodies))

    def rows(self, table: LakeTable, *columns: str) -> list[tuple[Any, ...]]:
        """Return the sorted rows of a table, without Spark, which is slower."""
        found = self.lake.open(table).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted(tuple(one[name] for name in columns) for one in found)

    def bodies(self) -> list[bytes]:
        """Return the bodies of all messages, sorted."""
        return [body for (body,) in self.rows(MESSAGES, "body")]
