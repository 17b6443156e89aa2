"""The source and the sink as Spark 4.0 and 4.1 see them, on any version that runs the tests.

Newer versions of Spark still accept both: a ``latestOffset()`` without arguments and a stream
writer for rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter

from escrowmq.pipeline.data_source import EscrowSource
from escrowmq.pipeline.sink import batch as sink
from escrowmq.pipeline.sink.stream import StreamWriting
from escrowmq.pipeline.source import message_options, position_keeping
from escrowmq.pipeline.source.stream import MessageStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "old_api"


class RowStreamWriter(StreamWriting, DataSourceStreamWriter):
    """A stream writer that gets rows from Spark."""


class OldApi(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return EscrowSource(self.options).schema()

    def streamReader(self, schema: StructType) -> position_keeping.PositionKeepingReader:  # noqa: N802
        read = message_options.stream_options(self.options)
        return position_keeping.keeping(
            MessageStreamReader(read, schema),
            available_now=read.available_now,
            limit_option="maxRowsPerBatch",
            is_limit_given=read.rows_per_batch_max > 0,
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> RowStreamWriter:  # noqa: FBT001, N802
        options = sink.read_options(self.options, is_stream=True)
        sink.check(schema, options, overwrite=overwrite)
        return RowStreamWriter(options, schema)
