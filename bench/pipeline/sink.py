"""How fast Spark writes messages, beside Parquet files of the same rows.

    python -m bench.pipeline sink [ROWS]

Both read the rows from Parquet files, two tasks at a time, in turn. A row's body is 300 bytes that
cannot be compressed. The broker is a process on the same machine and flushes its log to the disk
before it answers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it has no type stubs

from bench.figures.common import alternate, report, scratch
from bench.figures.cpu import CpuTimes
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import spark_session
from tests.fuzz.served import Served, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1_000_000
BODY_BYTES = 300
PARTITIONS = 4
RUNS = 3
TOPIC = "bench-topic"


def main(arguments: list[str]) -> None:
    """Report both rates and their ratio."""
    rows = int(arguments[0]) if arguments else ROWS
    with scratch() as path, served(path) as broker:
        spark = spark_session(PipelineConfig(master="local[2]"), cache=path / "cache")
        frame = made(spark, path / "rows", rows)
        spent: list[dict[str, object]] = []

        def ours(_run: int) -> float:
            cpu = CpuTimes(broker=broker.process.pid)
            rate = rows / to_broker(frame, broker)
            spent.append(cpu.spent())
            return rate

        sink, parquet, ratio = alternate(
            ours, lambda run: rows / to_parquet(frame, path / f"out-{run}"), RUNS
        )
        report("sink_rows_per_s", sink, "1/s", rows=rows, body_bytes=BODY_BYTES, **spent[-1])
        report("parquet_write_rows_per_s", parquet, "1/s", rows=rows)
        report("sink_over_parquet", ratio, "ratio", runs=RUNS)
        spark.stop()


def made(spark: SparkSession, path: Path, rows: int) -> DataFrame:
    """Write `rows` rows to Parquet files; return them as a frame."""

    def bodies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            count = batch.num_rows
            offsets = np.arange(0, BODY_BYTES * count + 1, BODY_BYTES, dtype=np.int32)
            data = pa.py_buffer(os.urandom(BODY_BYTES * count))
            column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
            yield pa.record_batch({"body": column})

    numbers = spark.range(0, rows, 1, PARTITIONS)
    numbers.mapInArrow(bodies, "body binary").write.parquet(str(path))
    return spark.read.parquet(str(path))


def to_broker(frame: DataFrame, broker: Served) -> float:
    """Write to the broker; return the seconds until all rows are durable and visible."""
    began = time.perf_counter()
    writer = frame.write.format("escrowmq").mode("append")
    writer.options(broker=broker.address, topic=TOPIC).save()
    return time.perf_counter() - began


def to_parquet(frame: DataFrame, path: Path) -> float:
    """Write Parquet files; return the seconds it took."""
    began = time.perf_counter()
    frame.write.parquet(str(path))
    return time.perf_counter() - began


if __name__ == "__main__":
    main([])
