"""What the archive's tasks do: rows in, files out; in tasks, with nothing that is not pickled.

A message with a ``problem`` goes to the quarantine, whatever it is: it never stops a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.lake import Lake
from escrowmq.pipeline.lake_files import FILE_DDL, TableFiles, WrittenFile, as_batch
from escrowmq.pipeline.lake_tables import MESSAGES, QUARANTINE, LakeTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
class WriteRows:
    """Writes every row to one table."""

    target: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: the rows in, what the driver must know of the files out."""
        files = self.target.files()
        for batch in batches:
            files.add(batch)
        yield as_batch(files.finish())


@dataclass(frozen=True, slots=True)
class WriteMessages:
    """Writes messages to their table, and those with a problem to the quarantine."""

    messages: Target
    quarantine: Target
    archive_id: int
    batch: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: the rows in, what the driver must know of the files out."""
        messages, quarantine = self.messages.files(), self.quarantine.files()
        for batch in batches:
            problems = batch.column("problem")
            if problems.null_count == batch.num_rows:
                messages.add(batch)
                continue
            messages.add(batch.filter(pc.is_null(problems)))
            quarantine.add(self._kept(batch.filter(pc.is_valid(problems))))
        yield as_batch([*messages.finish(), *quarantine.finish()])

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


def written_by(frame: DataFrame, task: WriteRows | WriteMessages) -> list[WrittenFile]:
    """Run the tasks; on the driver, which gets a row for each file, and none of theirs."""
    # Not more tasks than can run at a time: each writes files of its own.
    parallel = frame.sparkSession.sparkContext.defaultParallelism
    files = frame.coalesce(parallel).mapInArrow(task, FILE_DDL)
    return [WrittenFile(*row) for row in files.collect()]


MESSAGE_COLUMNS = (*(name for name in MESSAGES.columns), "sys_flag", "problem")
"""Those of the source that the tasks need."""

assert set(QUARANTINE.columns) <= {*MESSAGE_COLUMNS, "body_bytes", "archive_id", "batch"}
