"""Groups rows into Arrow batches for Spark 4.0, whose stream writers get rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.sink.columns import BODY, VALUE

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""A batch ends with the row whose body reaches this total. Bodies may have megabytes."""


def as_batches(items: Iterator[Any], schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Pass on Arrow batches unchanged, or group rows into batches of at most `rows_max`."""
    first = next(items, None)
    if first is None:
        return iter(())
    again = chain((first,), items)
    return again if isinstance(first, pa.RecordBatch) else _batches(again, schema, rows_max)


def _batches(
    rows: Iterator[Sequence[Any]], schema: pa.Schema, rows_max: int
) -> Iterator[pa.RecordBatch]:
    body = next(index for index, name in enumerate(schema.names) if name in (BODY, VALUE))
    gathered: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        gathered.append(row)
        size += len(row[body] or b"")
        if len(gathered) >= rows_max or size >= BATCH_BYTES_MAX:
            yield _batch(gathered, schema)
            gathered, size = [], 0
    if gathered:
        yield _batch(gathered, schema)


def _batch(rows: list[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array([_arrow_value(row[index], field.type) for row in rows], field.type)
        for index, field in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _arrow_value(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401 - whatever a column has
    """The value in the form that Arrow needs for a column of this type."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, datetime) and value.tzinfo is None and kind.tz is not None:
        # Spark gives the instants of TIMESTAMP columns in the local time zone of the process, and
        # Arrow would take them as UTC. TIMESTAMP_NTZ columns have no zone on either side.
        return value.astimezone()
    return value
