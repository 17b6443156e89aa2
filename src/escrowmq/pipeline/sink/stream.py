"""``df.writeStream.format("escrowmq")``: every batch of a query, written exactly once.

This is the same as a plain write, but a batch is identified by a number and the query's id. After
any crash, Spark repeats a batch that may have been committed with the same number and query id.
Both are read in the tasks, because the object that commits is not the object that writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import RequestRefused
from escrowmq.model.sink_attempt import RUN_CHARS, SinkRun
from escrowmq.pipeline.sink.batch import (
    SinkOptions,
    brokers_of,
    check,
    commit,
    new_attempt,
    read_options,
    roll_back,
    write_attempt,
    written_of,
)
from escrowmq.pipeline.sink.row_batches import as_batches
from escrowmq.pipeline.sink.spark_names import BATCH_ID, QUERY_ID, RUN_ID, told_by_spark
from escrowmq.pipeline.sink.writing import REQUEST_ROWS_MAX
from escrowmq.pipeline.spark_api import DataSourceStreamArrowWriter, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


def writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return a writer. Spark calls this on the driver, once to write and again for each commit."""
    chosen = read_options(options, is_stream=True)
    check(schema, chosen, overwrite=overwrite, is_stream=True)
    return StreamWriter(chosen, schema)


class StreamWriting:
    """The writer of a stream.

    Made on the driver and pickled to the tasks. Another instance commits.
    """

    rows_max = REQUEST_ROWS_MAX

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._brokers = brokers_of(options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Hold the rows of one partition. Runs in a task, once for each attempt.

        Spark 4.0 passes rows; later versions pass Arrow batches.
        """
        return self.hold(as_batches(iterator, arrow_schema(self._schema), self.rows_max))

    def hold(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Hold the rows of one partition as a separate attempt."""
        run = SinkRun(
            app_id=self._options.app_id,
            query_id=told_by_spark(QUERY_ID),
            run=told_by_spark(RUN_ID)[:RUN_CHARS],
            opened_at=self._brokers.opened_at,
        )
        attempt = new_attempt(run, int(told_by_spark(BATCH_ID)))
        return write_attempt(self._options, self._brokers, attempt, batches, self.rows_max)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Make the batch visible. Runs beside the driver, after all tasks are done."""
        written = written_of(messages)
        if not written:
            # Spark runs a task even if there are no rows. Without a task the query is unknown.
            raise RequestRefused("query_unknown", "no task reported its query", batch_id=batchId)
        first = written[0].attempt
        assert first.batch == batchId, (first.batch, batchId)
        commit(self._options, self._brokers, first.run, batchId, written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Roll back undecided attempts. Runs beside the driver, also after a failed commit."""
        roll_back(self._options, self._brokers.home, written_of(messages))


class StreamWriter(StreamWriting, DataSourceStreamArrowWriter):
    """The writer for this version of Spark: for Arrow batches if it supports them."""
