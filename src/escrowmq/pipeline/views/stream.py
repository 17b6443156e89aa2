"""What the log says, as a stream: ``readStream`` with a view of the log.

The checkpoint holds a log offset for each broker, by the broker's name: it is the same broker when
its address has changed.  Nothing is kept here between two batches, except the ends up to which a
query reads that takes what is available now.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.views.options import LATEST
from escrowmq.pipeline.views.ranges import Range, Standing, evenly, refuse_loss, standing
from escrowmq.pipeline.views.rows import read_range

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from escrowmq.pipeline.views.options import ViewOptions

#: By the names of brokers.
LogOffsets = dict[str, int]


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batch after batch, each from where the last one ended."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: Of a query that takes what is available now.
        self._target: LogOffsets | None = None

    # On the driver.

    def initialOffset(self) -> LogOffsets:  # noqa: N802 - Spark's
        """Where a new query begins; once in its life."""
        return {broker.name: self._first(broker) for broker in self._standing()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """What ``maxBytesPerBatch`` says."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Note what is there now; before the first batch."""
        self._target = self.reportLatestOffset()

    def latestOffset(self, start: LogOffsets, limit: ReadLimit) -> LogOffsets:  # noqa: N802 - Spark's
        """Where the next batch ends; before each batch."""
        ends = dict(start)
        for broker in self._standing():
            end = broker.log_end
            if self._target is not None:
                end = min(end, self._target.get(broker.name, 0))
            # A broker that nobody knew may be old: of it we take what there is.
            at = start.get(broker.name, broker.log_start)
            if refuse_loss(self._options, broker.name, at, (broker.log_start, broker.log_end)):
                at = broker.log_start
            if isinstance(limit, ReadMaxBytes):
                end = min(end, at + limit.max_bytes)
            ends[broker.name] = max(end, at)
        return ends

    def reportLatestOffset(self) -> LogOffsets:  # noqa: N802 - Spark's
        """Where the logs end, for the query's progress."""
        return {broker.name: broker.log_end for broker in self._standing()}

    def partitions(self, start: LogOffsets, end: LogOffsets) -> list[Range]:
        """What each task reads of a batch; once for each batch, again if it is repeated."""
        there = {broker.name: broker for broker in self._standing()}
        ranges = []
        for name, last in end.items():
            if start.get(name) == last:
                continue
            if name not in there:
                raise bad_option("broker", f"with the address of {name}: the query has begun it")
            first = start.get(name, there[name].log_start)
            # A log that ends before the last batch did was made anew.
            first = first if first < last else there[name].log_start
            for low, high in evenly(first, last, self._options.range_bytes):
                ranges.append(Range(there[name].address, name, low, high))
        return ranges

    def _first(self, broker: Standing) -> int:
        if self._options.starting == LATEST:
            return broker.log_end
        given = self._options.start.of(broker.name)
        return broker.log_start if given is None else given

    def _standing(self) -> list[Standing]:
        return standing(self._options)

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; in a task, and again if the task is."""
        return read_range(self._options, self._schema, partition)
