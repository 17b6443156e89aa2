"""Makes the start cache: starts Spark, uses a little of everything, and lets Java record it.

    python -m escrowmq.pipeline.service.start_training CACHE_DIR [PARENT_PID]

Runs once, in a separate process at the lowest priority. It takes half a minute of one processor.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from escrowmq.model.errors import Unavailable
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.jobs import java_of
from escrowmq.pipeline.spark.parent import end_with_parent
from escrowmq.pipeline.spark.scratch import scratch_in
from escrowmq.pipeline.spark.session import spark_session
from escrowmq.pipeline.spark.start_cache import QUICK_OPTIONS, StartCache, start_cache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: The timeout for Java to exit. It writes the cache when it exits.
WRITE_S_MAX = 300
NICENESS = 19


def train(cache: Path) -> StartCache:
    """Make and keep the cache that fits the installed Java and Spark.

    Raises:
        Unavailable: ``start_cache_unwritten``.
    """
    wanted = start_cache(cache)
    with scratch_in(cache) as scratch:
        draft = scratch / "draft.aot"
        spark = spark_session(
            PipelineConfig(master="local[2]"),
            cache=cache,
            scratch=scratch,
            jvm_options=(*QUICK_OPTIONS, f"-XX:AOTCacheOutput={draft}"),
        )
        exercise(spark, scratch)
        end(spark)
        if not draft.exists():
            raise Unavailable("start_cache_unwritten", "Java wrote no cache", path=str(draft))
        wanted.keep(draft)
    return wanted


def exercise(spark: SparkSession, scratch: Path) -> None:
    """Use the features that the pipeline uses: a data source, workers, joins, a stream."""
    spark.dataSource.register(TrainingSource)
    rows = spark.read.format(TrainingSource.name()).load()
    by_name = rows.groupBy("name").agg(F.count("*").alias("count"), F.max("number").alias("most"))
    joined = rows.join(by_name, on="name", how="left").where(F.col("number") > 0)
    joined.mapInArrow(_same, joined.schema).orderBy("number").limit(10).collect()
    rows.join(by_name.limit(3), on="name", how="left_anti").toArrow()
    query = (
        spark.readStream.format(TrainingSource.name())
        .load()
        .writeStream.foreachBatch(_look)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()


def end(spark: SparkSession) -> None:
    """Stop Spark and wait for its JVM, which writes the cache when it exits."""
    java = java_of(spark)
    spark.stop()
    assert java.stdin is not None
    java.stdin.close()
    java.wait(timeout=WRITE_S_MAX)


class TrainingSource(DataSource):
    """A few rows, for batch and stream reads."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "escrowmq_training"

    def schema(self) -> str:
        """The columns."""
        return "number bigint, name string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """All rows."""
        del schema
        return _Rows()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """All rows, as a stream."""
        del schema
        return _Stream()


class _Rows(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)


class _Stream(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        return {"at": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802 - Spark's
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["at"], end["at"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(partition)


def _batches(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    numbers = range(1_000)
    names = [f"name {number % 7} of {partition.value}" for number in numbers]
    yield pa.RecordBatch.from_pydict({"number": list(numbers), "name": names})


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _look(rows: DataFrame, _number: int) -> None:
    rows.toArrow()


def main(cache: str, parent: str = "") -> None:
    """Make the cache, unless it exists."""
    os.nice(NICENESS)
    if parent:
        # Kill the whole group: the JVM would otherwise finish writing the cache.
        signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
        end_with_parent(int(parent))
    if not start_cache(Path(cache)).is_whole():
        train(Path(cache))


if __name__ == "__main__":
    main(*sys.argv[1:])
