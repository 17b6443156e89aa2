"""Reading messages with Spark, beside reading the same rows from Parquet.

    python -m bench.pipeline source [ROWS]

Half of the messages were transactional. Bodies are 300 bytes of random text in eight queues. Both
sides read all columns but the map and write to Spark's ``noop`` sink.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures.common import commit, held, message, opened, report, scratch
from bench.figures.cpu import CpuTimes
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.spark.session import spark_session
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import SentRow
from escrowmq.transaction.commands import Append
from tests.fuzz.served import Served, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from escrowmq.model.message import SentMessage

ROWS = 2_000_000
QUEUES = 8
TOPIC = "order-paid"
#: Messages per request, and per transaction.
SENT_AT_ONCE = 64
HELD_AT_ONCE = 8
RUNS = 3
#: Enough memory for the JVM to keep the data, on both sides.
MEMORY = "2g"


def main(arguments: list[str]) -> None:
    """Report both rates and their ratio."""
    rows = int(arguments[0]) if arguments else ROWS
    with scratch() as path:
        fill(path / "data" / "store", rows)
        with served(path) as broker:
            name_topic(broker)
            compare(broker, path / "parquet")


def fill(place: Path, rows: int) -> None:
    """Store messages, half of them in transactions, as if they had arrived one after the other."""
    place.parent.mkdir(parents=True)
    store, _ = opened(place, durability="os")
    now_ms = time.time_ns() // 1_000_000
    for first in range(0, rows, 2 * SENT_AT_ONCE):
        store.execute(Append(messages=some(first, SENT_AT_ONCE)), now_ms)
        for start in range(first + SENT_AT_ONCE, first + 2 * SENT_AT_ONCE, HELD_AT_ONCE):
            messages = some(start, HELD_AT_ONCE)
            commit(store, held(store, messages, f"transaction-{start}", now_ms), now_ms)
        store.sync()
        if store.checkpoint_due:
            store.checkpoint()
    store.close()


def some(first: int, count: int) -> tuple[SentMessage, ...]:
    """Messages with random text, spread over all queues in turn."""
    text = base64.b64encode(os.urandom(225 * count))
    return tuple(
        message(first + at, text[300 * at : 300 * at + 300], (first + at) % QUEUES)
        for at in range(count)
    )


def name_topic(broker: Served) -> None:
    """Send one message to create the topic, which the filled store does not have."""
    row = SentRow(
        topic=TOPIC, queue_id=0, body=b"", properties="", flag=0, sys_flag=0, born_at_ms=0
    )
    with NativeCalls(broker.address) as calls:
        calls.call(NativeCode.SEND_MANY, rows=[row])


def compare(broker: Served, parquet: Path) -> None:
    """Read both in the same session, in turn; report the best run of each."""
    options = PipelineConfig(master="local[2]", spark_options=f"spark.driver.memory={MEMORY}")
    spark = spark_session(options)
    try:
        source(spark, broker).write.parquet(str(parquet))
        rows = spark.read.parquet(str(parquet)).count()
        kinds = {
            "source": lambda: source(spark, broker),
            "parquet": lambda: spark.read.parquet(str(parquet)),
        }
        took: dict[str, list[float]] = {name: [] for name in kinds}
        spent: dict[str, dict[str, object]] = {}
        for _ in range(RUNS):
            for name, frame in kinds.items():
                cpu = CpuTimes(broker=broker.process.pid)
                took[name].append(timed(frame))
                spent[name] = cpu.spent()
        report(
            "source_over_parquet",
            min(took["parquet"]) / min(took["source"]),
            "x",
            rows=rows,
            source_per_s=round(rows / min(took["source"])),
            parquet_per_s=round(rows / min(took["parquet"])),
            source_s=took["source"],
            parquet_s=took["parquet"],
            source_cpu_s=spent["source"],
            parquet_cpu_s=spent["parquet"],
        )
    finally:
        spark.stop()


def source(spark: SparkSession, broker: Served) -> DataFrame:
    """All messages of the topic, with all columns but the map."""
    reader = spark.read.format("escrowmq").option("broker", broker.address)
    return reader.option("topic", TOPIC).load()


def timed(frame: Callable[[], DataFrame]) -> float:
    """Read all rows; return the seconds it took."""
    started = time.perf_counter()
    frame().write.format("noop").mode("overwrite").save()
    return round(time.perf_counter() - started, 3)
