"""Streaming queries for tests: from a folder of files into the sink, one file per batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.faulty_sink import FORMAT, FaultySink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "orders"


class Stream:
    """A query that reads everything available and stops, each time it is run."""

    def __init__(self, spark: SparkSession, folder: Path, broker_address: str) -> None:
        self._spark = spark
        self._files = folder / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self.checkpoint = folder / "checkpoint"
        self.broker_address = broker_address
        #: The columns to write; the input has one column ``value``.
        self.columns: tuple[str, ...] = ("value",)

    def add(self, *bodies: object) -> None:
        """Add one more batch."""
        number = len(list(self._files.iterdir()))
        # Rename a complete file, so that Spark never sees a partial one.
        draft = self._files.parent / "draft"
        draft.write_text("".join(f"{body}\n" for body in bodies), encoding="utf-8")
        draft.rename(self._files / f"{number:06}.txt")

    def start(self, app_id: str = "app", **options: str) -> StreamingQuery:
        """Start to write all available batches."""
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
        """Write all available batches; raise the query's error."""
        query = self.start(app_id, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
