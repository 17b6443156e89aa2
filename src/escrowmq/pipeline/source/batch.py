"""Committed messages as a DataFrame: ``spark.read.format("escrowmq")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from escrowmq.model.errors import RequestRefused
from escrowmq.model.lineage import Sight
from escrowmq.pipeline.source.column_types import check_schema
from escrowmq.pipeline.source.message_columns import TYPES, spark_schema
from escrowmq.pipeline.source.message_options import (
    Bound,
    MessageOptions,
    any_options,
    batch_options,
)
from escrowmq.pipeline.source.message_reading import RangesPartition, note_losses, read_partition
from escrowmq.pipeline.source.offsets import (
    NOWHERE,
    Loss,
    QueueKey,
    QueueSlice,
    Spans,
    packed,
    readable,
    task_rows,
)
from escrowmq.pipeline.source.queues import KnownBrokers

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> StructType:
    """The columns that the options select. Runs on the driver."""
    return spark_schema(any_options(options).columns)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return a reader of the current data. Runs on the driver."""
    check_schema(schema, TYPES)
    return MessageReader(batch_options(options), schema)


class MessageReader(DataSourceReader):
    """Reads one batch: from one offset of each queue to another."""

    def __init__(self, options: MessageOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[RangesPartition]:
        """Plan what each task reads. Runs once, on the driver, and fixes the end of each queue."""
        options = self._options
        found = options.known()
        unknown = found.unknown(options.topics)
        if unknown:
            # Otherwise a misspelled name in a list would silently leave out its messages.
            raise RequestRefused(
                "topic_unknown", "no broker has this topic", topic=",".join(unknown)
            )
        starts = bounds(options, options.start, found.spans)
        ends = bounds(options, options.end, found.spans)
        # A start beyond the queue's end is wrong, or belongs to another store.
        note_losses(
            [
                Loss(key, start, ends[key], found.spans[key])
                for key, start in starts.items()
                if start > found.spans[key].end
            ],
            options,
        )
        ranges = [
            QueueSlice(key, starts[key], max(starts[key], ends[key])) for key in sorted(starts)
        ]
        return planned(options, found, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a partition. Runs on an executor, once for each attempt."""
        return read_partition(partition, self._options, self._schema)


def bounds(options: MessageOptions, bound: Bound, there: Spans) -> dict[QueueKey, int]:
    """The offsets that begin or end a read. Offsets for a time are requested from the brokers."""
    if bound.at_ms < 0:
        missing = bound.missing(there)
        note_losses([Loss(key, bound.offsets[key], None, None) for key in missing], options)
        return bound.all(there)
    since = options.known(from_ms=bound.at_ms)
    # Messages that arrived between the two requests are left out.
    return {
        key: min(since.spans[key].start, span.end) if key in since.spans else span.end
        for key, span in there.items()
    }


def planned(
    options: MessageOptions, found: KnownBrokers, ranges: Sequence[QueueSlice]
) -> Sequence[RangesPartition]:
    """Cut and pack ranges into tasks. Raise an error for missing messages, or skip them."""
    kept = []
    lost = []
    for queue, start, end in ranges:
        there = found.spans.get(queue)
        if there is None or (start < end and not (there.start <= start and end <= there.end)):
            lost.append(Loss(queue, start, end, there))
        kept.append(QueueSlice(queue, *readable(start, end, there or NOWHERE)))
    note_losses(lost, options)
    rows_max = options.rows_per_partition_max or task_rows(sum(end - at for _, at, end in kept))
    return [
        RangesPartition(
            found.addresses[broker],
            some,
            _planned_in(found, broker),
            {one.queue.topic: found.born.get(one.queue[:2], -1) for one in some},
        )
        for some in packed(kept, rows_max)
        for broker in (some[0].queue.broker,)
    ]


def _planned_in(found: KnownBrokers, broker: str) -> Sight | None:
    """The history in the form that tasks need: only its newest epoch."""
    sight = found.sights.get(broker)
    if sight is None:
        return None
    return Sight(sight.lineage.without_repairs().newest(1), sight.log_end, sight.half_end)
