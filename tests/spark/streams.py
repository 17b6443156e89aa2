"""Streaming queries for tests: a folder of files in, the sink out, one file per batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.faulty_sink import FORMAT, FaultySink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "orders"


class Stream:
    """A query that reads what is there and stops, as often as it is run."""

    def __init__(self, spark: SparkSession, folder: Path, broker_address: str) -> None:
        self._spark = spark
        self._files = folder / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint"
        self.broker_address = broker_address
        #: Of what is read, which is a column ``value``.
        self.columns: tuple[str, ...] = ("value",)

    def add(self, *bodies: object) -> None:
        """One more batch."""
        number = len(list(self._files.iterdir()))
        # By name and at once: a file that is being written must not be seen.
        draft = self._files.parent / "draft"
        draft.write_text("".join(f"{body}\n" for body in bodies), encoding="utf-8")
        draft.rename(self._files / f"{number:06}.txt")

    def start(self, app_id: str = "app", **options: str) -> StreamingQuery:
        """Begin to write all batches that are there."""
        if "fault" in options:
            self._spark.dataSource.register(FaultySink)
        lines = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        writer = (
            lines.load(str(self._files))
            .selectExpr(*self.columns)
            .writeStream.format(FORMAT if "fault" in options else "escrowmq")
            .option("checkpointLocation", str(self.checkpoint))
            .options(broker=self.broker_address, topic=TOPIC, appId=app_id, **options)
        )
        return writer.trigger(availableNow=True).start()

    def run(self, app_id: str = "app", **options: str) -> None:
        """Write all batches that are there; what goes wrong is raised."""
        query = self.start(app_id, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
