"""A broker, a lake beside it, and the archive between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.archive import ArchiveSummary, archive_once
from escrowmq.pipeline.archive_streams import ArchiveOptions
from escrowmq.pipeline.lake import Lake
from escrowmq.pipeline.lake_tables import MESSAGES, LakeTable
from tests.spark.topics import row, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from escrowmq.testing import InProcessBroker


class Lakeside:
    """Archives a broker into a lake, as often as a test likes."""

    def __init__(self, spark: SparkSession, broker: InProcessBroker, folder: Path) -> None:
        self.broker = broker
        self.lake = Lake(folder / "lake")
        self.checkpoints = folder / "checkpoints"
        self._spark = spark

    def archive(self, **options: Any) -> ArchiveSummary:  # noqa: ANN401 -- options are of all types
        """Archive what is there now."""
        return archive_once(
            self._spark,
            [self.broker.broker_address],
            self.lake.uri,
            str(self.checkpoints),
            ArchiveOptions(**options),
        )

    def send(self, *bodies: bytes, topic: str = "orders", queue_id: int = 0) -> None:
        """Store messages."""
        send(self.broker, *(row(body, topic=topic, queue_id=queue_id) for body in bodies))

    def rows(self, table: LakeTable, *columns: str) -> list[tuple[Any, ...]]:
        """What is in a table, sorted.  Without Spark, which needs longer."""
        found = self.lake.open(table).to_pyarrow_table(columns=list(columns)).to_pylist()
        return sorted(tuple(one[name] for name in columns) for one in found)

    def bodies(self) -> list[bytes]:
        """The bodies of all messages, sorted."""
        return [body for (body,) in self.rows(MESSAGES, "body")]
