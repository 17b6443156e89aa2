"""The log as a stream: ``readStream`` with a view of the log.

The checkpoint holds a log offset for each broker and the history that it belongs to, under the
broker's name, which stays when its address changes. The reader keeps no state between two batches,
except the end offsets of an ``availableNow`` query.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader

from escrowmq.pipeline.source.position_keeping import not_addressed
from escrowmq.pipeline.source.positions import (
    Kept,
    fork_of,
    is_other_store,
    not_ours,
    places,
    position_of,
    to_keep,
)
from escrowmq.pipeline.spark_api import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from escrowmq.pipeline.views.options import LATEST
from escrowmq.pipeline.views.ranges import BrokerExtent, LogRange, evenly, refuse_loss, standing
from escrowmq.pipeline.views.rows import read_range

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from escrowmq.pipeline.views.options import ViewOptions

#: By broker name.
LogOffsets = dict[str, int]


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads batches, each from where the last one ended."""

    def __init__(self, options: ViewOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: The end offsets of an ``availableNow`` query.
        self._target: LogOffsets | None = None

    # On the driver.

    def initialOffset(self) -> Kept:  # noqa: N802 - Spark's
        """Return where a new query begins. Spark calls this once for each query."""
        there = self._standing()
        return _to_keep({broker.name: self._first(broker) for broker in there}, there, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit of ``maxBytesPerBatch``."""
        return ReadMaxBytes(self._options.batch_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end offsets, before the first batch."""
        self._target = self.reportLatestOffset()

    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:  # noqa: N802 - Spark's
        """Where the next batch ends. Spark calls this before each batch."""
        ends = places(start)
        there = self._standing()
        for broker in there:
            end = broker.log_end
            if self._target is not None:
                end = min(end, self._target.get(broker.name, 0))
            at, is_of_other = _placed(start, broker)
            # Another store's log has not been read, whatever the offset is.
            readable = (broker.log_start, -1 if is_of_other else broker.log_end)
            if refuse_loss(self._options, broker.name, at, readable):
                at = broker.log_start
            if isinstance(limit, ReadMaxBytes):
                end = min(end, at + limit.max_bytes)
            ends[broker.name] = max(end, at)
        return _to_keep(ends, there, start)

    def reportLatestOffset(self) -> LogOffsets:  # noqa: N802 - Spark's
        """Where the logs end, for the query's progress."""
        return {broker.name: broker.log_end for broker in self._standing()}

    def partitions(self, start: Kept, end: Kept) -> list[LogRange]:
        """What each task of a batch reads. Spark calls this again if it repeats the batch."""
        there = {broker.name: broker for broker in self._standing()}
        ranges = []
        for name, kept in end.items():
            if kept == start.get(name):
                continue
            if name not in there:
                raise not_addressed(name)
            broker = there[name]
            first, is_first_of_other = _placed(start, broker)
            last, is_of_other = _placed(end, broker)
            if is_of_other:
                # The store was replaced since, so all data of this batch is lost.
                refuse_loss(self._options, name, first, (broker.log_start, -1))
                continue
            # A log that ends before the last batch ended was recreated.
            if is_first_of_other or first > last:
                first = broker.log_start
            for low, high in evenly(first, last, self._options.range_bytes):
                ranges.append(LogRange(broker.address, name, low, high))
        return ranges

    def _first(self, broker: BrokerExtent) -> int:
        if self._options.starting == LATEST:
            return broker.log_end
        given = self._options.start.of(broker.name)
        return broker.log_start if given is None else given

    def _standing(self) -> list[BrokerExtent]:
        return standing(self._options)

    # In a task.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Runs in a task, once for each attempt."""
        return read_range(self._options, self._schema, partition)


def _placed(kept: Kept, broker: BrokerExtent) -> tuple[int, bool]:
    """The stream's position in the broker's current log, and whether it was in another store.

    A position beyond a fork continues at the fork. A broker that the checkpoint does not know may
    be old, so its log is read from its current start.
    """
    if broker.name not in kept:
        return broker.log_start, False
    at, seen, _ = position_of(kept[broker.name])
    if not isinstance(at, int):
        raise not_ours(broker.name, "a view")
    fork = fork_of(broker.name, seen, broker.sight)
    place = at if fork is None else min(at, fork.log_offset)
    return place, is_other_store(seen, broker.sight)


def _to_keep(ends: LogOffsets, there: list[BrokerExtent], before: Kept) -> Kept:
    sights = {broker.name: broker.sight for broker in there if broker.sight is not None}
    return to_keep(ends, sights, before)
