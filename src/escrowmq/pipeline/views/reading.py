"""Facts about transactions as DataFrames: what brokers know, and what their logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructField, StructType

from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.source.column_types import listed, spark_type
from escrowmq.pipeline.source.position_keeping import for_this_spark
from escrowmq.pipeline.views.options import any_options, batch_options, stream_options
from escrowmq.pipeline.views.ranges import Range, plan
from escrowmq.pipeline.views.rows import read_range
from escrowmq.pipeline.views.stream import ViewStreamReader

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    from escrowmq.pipeline.views.options import View, ViewOptions


def schema(options: Mapping[str, str]) -> StructType:
    """The columns that the options select, in order."""
    read = any_options(options)
    fields = _fields(read.view)
    return StructType([fields[name] for name in read.columns])


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return a reader of the current data."""
    read = batch_options(options)
    return ViewReader(read, _checked(read.view, schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return a reader of current and future data."""
    read = stream_options(options)
    return for_this_spark(
        ViewStreamReader(read, _checked(read.view, schema)),
        available_now=read.available_now,
        limit_option="maxBytesPerBatch",
        is_limit_given=read.is_batch_limited,
    )


class ViewReader(DataSourceReader):
    """Reads a view by ranges. Made on the driver, then pickled to the tasks."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[Range]:
        """The ranges. Runs once, on the driver."""
        return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Runs in a task, once for each attempt."""
        return read_range(self._options, self._schema, partition)


def _fields(view: View) -> dict[str, StructField]:
    return {
        name: StructField(name, spark_type(column.type), column.is_nullable)
        for name, column in view.columns.items()
    }


def _checked(view: View, schema: StructType) -> StructType:
    """Check a user's schema. It may leave out columns, but not add or change any."""
    fields = _fields(view)
    for field in schema:
        known = fields.get(field.name)
        if known is None or known.dataType != field.dataType:
            columns = listed((column.name, column.type) for column in view.columns.values())
            given = f"{field.name} {field.dataType.simpleString()}"
            raise bad_option("schema", f"some of {columns}", given)
    return schema
