"""The tasks of the archive, which read parts of a batch and write files.

One process does both. Passing the rows through Java would cost three times the processor time, and
the broker may be on the same machine.

A message with any ``problem`` goes to the quarantine and never stops a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.archive.again import without_known
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import WrittenFile
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE, TRANSACTIONS
from escrowmq.pipeline.views.facts import BROKER, BROKER_NAME

if TYPE_CHECKING:
    from deltalake import Transaction
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

QUARANTINED_BYTES_MAX = 256 * 1024
"""The most bytes of a body that the quarantine keeps."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a stream."""

    number: int
    reader: DataSourceStreamReader
    parts: Sequence[InputPartition]
    #: The marks that its commit changes.
    marks: Sequence[Transaction]
    #: Brokers whose history changed since the last batch, with the log offset of the fork.
    forks: Mapping[str, int]


#: Runs in a task: takes rows and returns the facts about the written files.
Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], list[WrittenFile]]


@dataclass(frozen=True, slots=True)
class WriteEvents:
    """Writes events of transactions."""

    lake: Lake

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Runs in a task."""
        files = self.lake.files(TRANSACTIONS)
        for batch in batches:
            # An address may change, but a name stays.
            names = [BROKER if name == BROKER_NAME else name for name in batch.schema.names]
            files.add(batch.rename_columns(names))
        return files.finish()


@dataclass(frozen=True, slots=True)
class WriteMessages:
    """Writes messages to their table, and those with a problem to the quarantine."""

    lake: Lake
    archive_id: int
    batch: int
    #: By broker, the log offset below which messages may also be visible in another history.
    forks: Mapping[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """Runs in a task."""
        messages, quarantine = self.lake.files(MESSAGES), self.lake.files(QUARANTINE)
        for rows in batches:
            batch = without_known(rows, self.forks, self.lake)
            problems = batch.column("problem")
            if problems.null_count == batch.num_rows:
                messages.add(batch)
                continue
            messages.add(batch.filter(pc.is_null(problems)))
            quarantine.add(self._kept(batch.filter(pc.is_valid(problems))))
        return [*messages.finish(), *quarantine.finish()]

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows for the quarantine, with bodies cut to the limit."""
        count = batch.num_rows
        bodies = batch.column("body")
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {
            "body": pc.binary_slice(bodies, 0, QUARANTINED_BYTES_MAX),
            "body_bytes": pc.binary_length(bodies).cast(pa.int64()),
            "archive_id": pa.repeat(pa.scalar(self.archive_id, pa.int64()), count),
            "batch": pa.repeat(pa.scalar(self.batch, pa.int64()), count),
        }
        return pa.record_batch(columns)


def written_by(spark: SparkSession, batch: Batch, task: Task) -> list[WrittenFile]:
    """Run the tasks. Runs on the driver, which gets one entry for each file and no rows."""
    if not batch.parts:
        return []
    context = spark.sparkContext
    # At most as many tasks as can run in parallel, because each writes its own files.
    count = min(len(batch.parts), context.defaultParallelism)
    parts = context.parallelize(batch.parts, count)
    return parts.mapPartitions(partial(_work, batch.reader, task)).collect()


def _work(
    reader: DataSourceStreamReader, task: Task, parts: Iterable[InputPartition]
) -> list[WrittenFile]:
    return task(chain.from_iterable(map(reader.read, parts)))


MESSAGE_COLUMNS = (*MESSAGES.columns, "sys_flag", "problem")
"""The source's columns that the tasks need."""

assert set(QUARANTINE.columns) <= {*MESSAGE_COLUMNS, "body_bytes", "archive_id", "batch"}

EVENT_COLUMNS = tuple(BROKER_NAME if name == BROKER else name for name in TRANSACTIONS.columns)
"""The source's columns of events that the tasks need."""
