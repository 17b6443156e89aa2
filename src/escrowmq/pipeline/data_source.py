"""The data source ``format("escrowmq")``, which only forwards to the modules that do the work.

Spark finds the class through the module ``pyspark_escrowmq`` of our wheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

MESSAGES = "messages"
FACTS = ("transactions", "halves", "ops", "checks", "events", "comparison")
VIEWS = (MESSAGES, *FACTS)


class EscrowSource(DataSource):
    """Reads messages and the facts about transactions, and writes messages exactly once."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "escrowmq"

    def _is_of_messages(self) -> bool:
        from escrowmq.pipeline.options import bad_option

        view = self.options.get("view", MESSAGES).lower()
        if view not in VIEWS:
            raise bad_option("view", f"one of {', '.join(VIEWS)}", view)
        return view == MESSAGES

    def schema(self) -> StructType:
        """The columns. Spark calls this on the driver, once for each load."""
        from escrowmq.pipeline.source import batch as source
        from escrowmq.pipeline.views import reading as views

        read = source.schema if self._is_of_messages() else views.schema
        return read(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the current data. Made on the driver and pickled to the tasks."""
        from escrowmq.pipeline.source import batch as source
        from escrowmq.pipeline.views import reading as views

        read = source.reader if self._is_of_messages() else views.reader
        return read(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return a reader of current and future data.

        Made on the driver and pickled to the tasks.
        """
        from escrowmq.pipeline.source import stream as source
        from escrowmq.pipeline.views import reading as views

        read = source.stream_reader if self._is_of_messages() else views.stream_reader
        return read(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        """Return a writer of one batch. Made on the driver and pickled to the tasks."""
        from escrowmq.pipeline.sink import batch as sink

        return sink.writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> DataSourceStreamArrowWriter:
        """Return a writer of many batches. Spark calls this on the driver, more than once."""
        from escrowmq.pipeline.sink import stream as stream_sink

        return stream_sink.writer(self.options, schema, overwrite=overwrite)
