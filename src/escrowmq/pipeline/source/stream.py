"""Committed messages as a stream: ``spark.readStream.format("escrowmq")``.

The checkpoint holds an offset for each queue and the history that it belongs to. The reader keeps
no state between two batches, except the end offsets of an ``availableNow`` query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from escrowmq.model.event_log import event_log
from escrowmq.pipeline.source.batch import bounds, planned
from escrowmq.pipeline.source.column_types import check_schema
from escrowmq.pipeline.source.forks import PlacedPosition, placed
from escrowmq.pipeline.source.message_columns import TYPES
from escrowmq.pipeline.source.message_options import MessageOptions, stream_options
from escrowmq.pipeline.source.message_reading import RangesPartition, note_losses, read_partition
from escrowmq.pipeline.source.offsets import (
    NOWHERE,
    Loss,
    QueueKey,
    QueueSlice,
    StreamOffsets,
    begun,
    from_json,
    shared_out,
    to_json,
)
from escrowmq.pipeline.source.position_keeping import for_this_spark
from escrowmq.pipeline.source.positions import Kept, places, to_keep
from escrowmq.pipeline.source.queues import KnownBrokers
from escrowmq.pipeline.spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.types import StructType

log = event_log(__name__)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return a reader of current and future messages. Runs on the driver."""
    check_schema(schema, TYPES)
    read = stream_options(options)
    return for_this_spark(
        MessageStreamReader(read, schema),
        available_now=read.available_now,
        limit_option="maxRowsPerBatch",
        is_limit_given=read.rows_per_batch_max > 0,
    )


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads batches, each from the last one's offsets."""

    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        #: The end offsets of an ``availableNow`` query.
        self._target: dict[QueueKey, int] | None = None

    # On the driver.

    def initialOffset(self) -> Kept:  # noqa: N802 - Spark's
        """Where a new query begins. Spark calls this once for each query."""
        found = self._options.known()
        unknown = found.unknown(self._options.topics)
        if unknown:
            # Not an error: a stream may start before its topics exist.
            log.warning("topic_awaited", extra={"topic": ",".join(unknown)})
        starts = bounds(self._options, self._options.start, found.spans)
        return to_keep(to_json(starts, found.addresses), found.sights, {}, found.born)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """The limit of ``maxRowsPerBatch``."""
        rows_max = self._options.rows_per_batch_max
        return ReadMaxRows(rows_max) if rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Fix the end offsets, before the first batch."""
        self._target = {key: span.end for key, span in self._options.known().spans.items()}

    def latestOffset(self, start: Kept, limit: ReadLimit) -> Kept:  # noqa: N802 - Spark's
        """Where the next batch ends. Spark calls this before each batch."""
        found = self._options.known()
        # A queue that appeared after the end offsets were fixed is left to the next run.
        wanted = {key: span.end for key, span in found.spans.items()}
        if self._target is not None:
            wanted = self._target
        there = {key: span for key, span in found.spans.items() if key in wanted}
        place = self._placed(start, found)
        starts = begun(place.offsets, there)
        lost = place.losses(starts, found.spans)
        note_losses(lost, self._options)
        for loss in lost:
            # Continue with the messages that exist. A queue that no longer exists has none.
            if loss.there is not None:
                starts[loss.queue] = loss.there.start
        ends = {key: max(min(span.end, wanted[key]), starts[key]) for key, span in there.items()}
        if isinstance(limit, ReadMaxRows):
            ends = shared_out(starts, ends, limit.max_rows)
        at = to_json({**starts, **ends}, found.addresses.keys() | start.keys())
        return to_keep(at, found.sights, start, found.born)

    def reportLatestOffset(self) -> StreamOffsets:  # noqa: N802 - Spark's
        """The ends of all queues, for the query's progress."""
        return to_json({key: span.end for key, span in self._options.known().spans.items()})

    def partitions(self, start: Kept, end: Kept) -> Sequence[RangesPartition]:
        """What each task of a batch reads. Spark calls this again if it repeats the batch."""
        found = self._options.known()
        first, last = self._placed(start, found), self._placed(end, found)
        ends = from_json(last.offsets)
        starts = begun(first.offsets, {key: found.spans.get(key, NOWHERE) for key in ends})
        # If the store was replaced since this batch was planned, all its messages are lost.
        gone = [Loss(key, starts[key], ends[key], None) for key in ends if last.is_of_other(key)]
        # The same holds for a topic that was deleted since, even if it was recreated.
        was, planned_to = from_json(places(start)), from_json(places(end))
        gone += [
            Loss(key, was.get(key, 0), planned_to[key], None)
            for key in sorted(last.remade)
            if planned_to[key] != was.get(key, 0)
        ]
        note_losses(gone, self._options)
        for key in ends:
            if last.is_of_other(key):
                ends[key] = starts[key]
            elif first.is_of_other(key):
                starts[key] = found.spans.get(key, NOWHERE).start
        ranges = [
            QueueSlice(key, starts[key], ends[key])
            for key in sorted(ends)
            if starts[key] != ends[key]
        ]
        return planned(self._options, found, ranges)

    def _placed(self, kept: Kept, found: KnownBrokers) -> PlacedPosition:
        return placed(kept, found, self._options.topics, self._options.patience_s)

    # On an executor.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition. Runs once for each attempt."""
        return read_partition(partition, self._options, self._schema)
