"""Reads the rows of a view in a task, as Arrow from the broker to Spark, without row objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.source.column_types import arrow_schema
from escrowmq.pipeline.views.facts import AS_OF_MS, BROKER, BROKER_NAME
from escrowmq.pipeline.views.ranges import LogRange, pages

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from escrowmq.pipeline.views.options import FactView, ViewOptions
    from escrowmq.protocol.native.frames import ArrowAnswer

BATCH_ROWS = 32_768
"""Pages are small, so that the broker's other clients do not wait. Spark gets larger batches."""


def read_range(
    options: ViewOptions, schema: StructType, part: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range, with these columns."""
    # If there is nothing to read, Spark creates its own partition.
    if not isinstance(part, LogRange):
        return
    wanted = arrow_schema(schema)
    gathered: list[pa.RecordBatch] = []
    count = 0
    for answer in pages(options, part, wanted.names):
        gathered.append(_rows(answer, part, wanted, options.view))
        count += answer.batch.num_rows
        if count >= BATCH_ROWS:
            yield pa.concat_batches(gathered)
            gathered, count = [], 0
    if count:
        yield pa.concat_batches(gathered)


def _rows(answer: ArrowAnswer, part: LogRange, wanted: pa.Schema, view: FactView) -> pa.RecordBatch:
    ours = {BROKER: part.broker, BROKER_NAME: part.broker_name, AS_OF_MS: answer.header.now_ms}
    known = view.columns

    def values(field: str) -> pa.Array:
        if field in ours:
            return pa.repeat(pa.scalar(ours[field]), answer.batch.num_rows)
        return answer.batch.column(field)

    made = [known[name].make(values(known[name].field)) for name in wanted.names]
    return pa.RecordBatch.from_arrays(made, schema=wanted)
