"""Facts about transactions as DataFrames: what brokers know, and what their logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructField, StructType

from escrowmq.pipeline.source.column_types import SPARK, check_schema
from escrowmq.pipeline.source.position_keeping import for_this_spark
from escrowmq.pipeline.views.options import any_options, batch_options, stream_options
from escrowmq.pipeline.views.ranges import LogRange, plan
from escrowmq.pipeline.views.rows import read_range
from escrowmq.pipeline.views.stream import ViewStreamReader

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    from escrowmq.pipeline.views.options import FactView, ViewOptions


def schema(options: Mapping[str, str]) -> StructType:
    """The columns that the options select, in order."""
    read = any_options(options)
    columns = [read.view.columns[name] for name in read.columns]
    return StructType([StructField(one.name, SPARK[one.type], one.is_nullable) for one in columns])


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return a reader of the current data."""
    read = batch_options(options)
    _check(read.view, schema)
    return ViewReader(read, schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return a reader of current and future data."""
    read = stream_options(options)
    _check(read.view, schema)
    return for_this_spark(
        ViewStreamReader(read, schema),
        available_now=read.available_now,
        limit_option="maxBytesPerBatch",
        is_limit_given=read.is_batch_limited,
    )


class ViewReader(DataSourceReader):
    """Reads a view by ranges. Made on the driver, then pickled to the tasks."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[LogRange]:
        """The ranges. Runs once, on the driver."""
        return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Runs in a task, once for each attempt."""
        return read_range(self._options, self._schema, partition)


def _check(view: FactView, schema: StructType) -> None:
    check_schema(schema, {name: column.type for name, column in view.columns.items()})
