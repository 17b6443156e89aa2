"""Writes files of the lake's tables where the rows are: in Spark's tasks.

A file belongs to a table once the driver has committed it. Files of a failed or repeated attempt
belong to no table, and ``vacuum`` removes them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from urllib.parse import quote

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from escrowmq.pipeline.lake.storage import files_below
from escrowmq.pipeline.lake.tables import DAY_MS, LakeTable

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""The most bytes of rows that a task buffers before it writes, over all partitions."""

FILE_BYTES_MAX = 128 * 1024 * 1024
"""A file that reaches this size is closed, and a new one is started."""

OPEN_FILES_MAX = 64
"""With one more open partition, the file that was opened first is closed."""

#: The values of a partition's columns, in order.
Values: TypeAlias = tuple[str, ...]

_EPOCH = date(1970, 1, 1)


class WrittenFile(NamedTuple):
    """The facts about a file that the driver needs to commit it."""

    table: str
    #: Relative to the table's directory.
    path: str
    size_bytes: int
    row_count: int
    modified_at_ms: int
    #: JSON: the values of the partition's columns, and Delta's statistics.
    partition: str
    stats: str
    #: The oldest and the newest instant in the column that dates the table.
    oldest_at_ms: int
    newest_at_ms: int


class TableFiles:
    """The files of one table that one task writes. It holds open files, so it cannot be pickled."""

    def __init__(self, table: LakeTable, uri: str, storage: Mapping[str, str]) -> None:
        self._table = table
        self._files = files_below(uri, storage)
        self._waiting: dict[Values, _BufferedRows] = {}
        self._waiting_bytes = 0
        #: In the order of opening.
        self._open: dict[Values, _OpenFile] = {}
        self._written: list[WrittenFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffer rows. This may write some of the buffered rows."""
        for values, rows in divided(batch, self._table):
            waiting = self._waiting.setdefault(values, _BufferedRows())
            waiting.batches.append(rows)
            waiting.size_bytes += rows.nbytes
            self._waiting_bytes += rows.nbytes
        while self._waiting_bytes > BUFFER_BYTES_MAX:
            self._write(max(self._waiting, key=lambda values: self._waiting[values].size_bytes))

    def finish(self) -> list[WrittenFile]:
        """Write the rest, and return the facts about every file."""
        for values in list(self._waiting):
            self._write(values)
        for values in list(self._open):
            self._close(values)
        return self._written

    def _write(self, values: Values) -> None:
        waiting = self._waiting.pop(values)
        self._waiting_bytes -= waiting.size_bytes
        if values not in self._open:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(next(iter(self._open)))
            self._open[values] = _OpenFile(self._table, values, self._files)
        # One row group. The amount of buffered rows determines its size.
        file = self._open[values]
        file.write(pa.Table.from_batches(waiting.batches, file.schema))
        if file.size_bytes >= FILE_BYTES_MAX:
            self._close(values)

    def _close(self, values: Values) -> None:
        self._written.append(self._open.pop(values).close())


@dataclass(slots=True)
class _BufferedRows:
    """Buffered rows of one partition."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0


class _OpenFile:
    """A file of one partition that is being written."""

    def __init__(self, table: LakeTable, values: Values, files: FileSystem) -> None:
        self.schema = table.file_schema()
        self._table = table
        self._values = dict(zip(table.partitioned_by, values, strict=True))
        directories = (f"{name}={quote(value, safe='')}" for name, value in self._values.items())
        directory = "/".join(directories)
        files.create_dir(directory)
        # The name is unique, so no attempt can overwrite the file of another.
        self._path = f"{directory}/part-{uuid.uuid4()}.zstd.parquet"
        self._stream = files.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(
            self._stream, self.schema, compression="zstd", compression_level=1
        )
        self._row_count = 0
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        """Write a row group."""
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._row_count += rows.num_rows
        for name in self._table.ranged_by:
            low, high = pc.min_max(rows.column(name), skip_nulls=False).as_py().values()
            assert low is not None, f"{name} is never null"
            self._low[name] = min(low, self._low.get(name, low))
            self._high[name] = max(high, self._high.get(name, high))

    def close(self) -> WrittenFile:
        """Close the file, and return its facts."""
        self._writer.close()
        size_bytes = self.size_bytes
        self._stream.close()
        stats = {
            "numRecords": self._row_count,
            "minValues": self._low,
            "maxValues": self._high,
            "nullCount": dict.fromkeys(self._low, 0),
        }
        return WrittenFile(
            table=self._table.name,
            path=self._path,
            size_bytes=size_bytes,
            row_count=self._row_count,
            modified_at_ms=time.time_ns() // 1_000_000,
            partition=json.dumps(self._values),
            stats=json.dumps(stats),
            oldest_at_ms=self._low[self._table.dated_by],
            newest_at_ms=self._high[self._table.dated_by],
        )


def divided(batch: pa.RecordBatch, table: LakeTable) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Split rows by partition, without the columns that the directories encode."""
    if not batch.num_rows:
        return
    kept = batch.select(table.file_schema().names).cast(table.file_schema())
    days = batch.column(table.dated_by).to_numpy(zero_copy_only=False) // DAY_MS
    codes = days - days.min()
    for name in table.divided_by:
        words = batch.column(name).dictionary_encode()
        codes = codes * len(words.dictionary) + words.indices.to_numpy()
    # Stable, so that rows keep their order within a partition.
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    if len(starts) > 1:
        kept = kept.take(pa.array(order))
    for start, end in pairwise([*starts, len(order)]):
        row = int(order[start])
        day = (_EPOCH + timedelta(days=int(days[row]))).isoformat()
        values = (*(batch.column(name)[row].as_py() for name in table.divided_by), day)
        yield values, kept.slice(start, end - start)
