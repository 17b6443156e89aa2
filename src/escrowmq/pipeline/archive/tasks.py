"""What the archive's tasks do: they read parts of a batch, and write files.

One process does both: rows that went through Java on their way cost three times the processor, and
the broker may be on the same machine.

A message with a ``problem`` goes to the quarantine, whatever it is: it never stops a stream.
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
from escrowmq.pipeline.lake.files import TableFiles, WrittenFile
from escrowmq.pipeline.lake.tables import MESSAGES, QUARANTINE, TRANSACTIONS, LakeTable
from escrowmq.pipeline.views.facts import BROKER, BROKER_NAME

if TYPE_CHECKING:
    from deltalake import Transaction
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

QUARANTINED_BYTES_MAX = 256 * 1024
"""Of a body that is kept in the quarantine."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where files of one table go."""

    table: LakeTable
    uri: str
    storage: Mapping[str, str]

    @classmethod
    def of(cls, lake: Lake, table: LakeTable) -> Target:
        """The table in this lake."""
        return cls(table, lake.uri_of(table), lake.storage)

    def files(self) -> TableFiles:
        """Files to write."""
        return TableFiles(self.table, self.uri, self.storage)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a stream takes at a time."""

    number: int
    reader: DataSourceStreamReader
    parts: Sequence[InputPartition]
    #: The positions that it moves, for its commit.
    marks: Sequence[Transaction]
    #: Brokers that have another history since the last batch, and the log offset at which it forks.
    forks: Mapping[str, int]


#: In a task: rows in, what the driver must know of the files out.
Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], list[WrittenFile]]


@dataclass(frozen=True, slots=True)
class WriteEvents:
    """Writes what happened to transactions."""

    events: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """In a task."""
        files = self.events.files()
        for batch in batches:
            # An address may change; a name stays.
            names = [BROKER if name == BROKER_NAME else name for name in batch.schema.names]
            files.add(batch.rename_columns(names))
        return files.finish()


@dataclass(frozen=True, slots=True)
class WriteMessages:
    """Writes messages to their table, and those with a problem to the quarantine."""

    messages: Target
    quarantine: Target
    archive_id: int
    batch: int
    #: By broker, a log offset: messages below it may have become visible in another history, too.
    forks: Mapping[str, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
        """In a task."""
        messages, quarantine = self.messages.files(), self.quarantine.files()
        for rows in batches:
            batch = without_known(rows, self.forks, self.messages.uri, self.messages.storage)
            problems = batch.column("problem")
            if problems.null_count == batch.num_rows:
                messages.add(batch)
                continue
            messages.add(batch.filter(pc.is_null(problems)))
            quarantine.add(self._kept(batch.filter(pc.is_valid(problems))))
        return [*messages.finish(), *quarantine.finish()]

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the quarantine: no more of a body than its bound."""
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
    """Run the tasks; on the driver, which gets a line for each file, and no row."""
    if not batch.parts:
        return []
    context = spark.sparkContext
    # Not more tasks than can run at a time: each writes files of its own.
    count = min(len(batch.parts), context.defaultParallelism)
    parts = context.parallelize(batch.parts, count)
    return parts.mapPartitions(partial(_work, batch.reader, task)).collect()


def _work(
    reader: DataSourceStreamReader, task: Task, parts: Iterable[InputPartition]
) -> list[WrittenFile]:
    return task(chain.from_iterable(map(reader.read, parts)))


MESSAGE_COLUMNS = (*(name for name in MESSAGES.columns), "sys_flag", "problem")
"""Those of the source that the tasks need."""

assert set(QUARANTINE.columns) <= {*MESSAGE_COLUMNS, "body_bytes", "archive_id", "batch"}

EVENT_COLUMNS = tuple(BROKER_NAME if name == BROKER else name for name in TRANSACTIONS.columns)
"""The same for events."""
