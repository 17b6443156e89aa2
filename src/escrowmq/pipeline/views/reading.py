"""Facts about transactions as DataFrames: what brokers know, and what their logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.views.options import any_options, batch_options, stream_options
from escrowmq.pipeline.views.ranges import Range, plan
from escrowmq.pipeline.views.rows import read_range
from escrowmq.pipeline.views.stream import ViewStreamReader
from escrowmq.protocol.own_forms import Kind

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    from escrowmq.pipeline.views.options import View, ViewOptions

_TYPES: dict[Kind, DataType] = {
    Kind.TEXT: StringType(),
    Kind.BYTES: BinaryType(),
    Kind.BOOL: BooleanType(),
    Kind.INT32: IntegerType(),
    Kind.INT64: LongType(),
}


def schema(options: Mapping[str, str]) -> StructType:
    """The columns: all of the view's, or those in ``columns``, in that order."""
    read = any_options(options)
    fields = _fields(read.view)
    return StructType([fields[name] for name in read.columns or fields])


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """A reader of what is there now."""
    read = batch_options(options)
    return ViewReader(read, _checked(read.view, schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """A reader of what is there and comes."""
    read = stream_options(options)
    return ViewStreamReader(read, _checked(read.view, schema))


class ViewReader(DataSourceReader):
    """Reads a view by ranges; made on the driver, then pickled to the tasks."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[Range]:
        """The ranges; on the driver, once."""
        return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; in a task, and again if the task is."""
        return read_range(self._options, self._schema, partition)


def _fields(view: View) -> dict[str, StructField]:
    return {
        column.name: StructField(column.name, _TYPES[column.kind], column.is_nullable)
        for column in view.columns
    }


def _checked(view: View, schema: StructType) -> StructType:
    """A schema that a user gave may leave out columns, and nothing else."""
    fields = _fields(view)
    for field in schema:
        known = fields.get(field.name)
        if known is None or known.dataType != field.dataType:
            allowed = ", ".join(
                f"{one.name} {one.dataType.simpleString()}" for one in fields.values()
            )
            raise bad_option("schema", f"some of {allowed}", field.simpleString())
    return schema
