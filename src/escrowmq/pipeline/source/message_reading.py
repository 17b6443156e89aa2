"""Reads ranges of queues in a task: bytes from the broker in, Arrow batches out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight, decode_lineage
from escrowmq.pipeline.source import message_columns as c
from escrowmq.pipeline.source.column_types import arrow_schema
from escrowmq.pipeline.source.decoding import decode_page
from escrowmq.pipeline.source.offsets import Loss, OffsetRange, QueueSlice, side_by_side
from escrowmq.pipeline.source.queues import patiently
from escrowmq.pipeline.source.stored_records import MessageSource, StoredPage, joined
from escrowmq.protocol.message.properties import tags_code
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.stored_headers import ReadStoredHeader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from escrowmq.pipeline.source.message_options import MessageOptions

log = event_log(__name__)

JOINED_BYTES = 4 * 1024 * 1024
"""The approximate number of stored bytes that are decoded together into one Arrow batch."""

PAGE_BYTES_MIN = 256 * 1024
PAGE_BYTES_MAX = 1024 * 1024
"""The most stored bytes of a page. A larger page would keep the broker's other clients waiting."""


@dataclass(frozen=True)
class RangesPartition(InputPartition):
    """Ranges of one broker's queues that one task reads."""

    address: str
    ranges: tuple[QueueSlice, ...]
    #: The history that the ranges belong to; None if the broker reports none.
    sight: Sight | None = None
    #: Where each topic began in the log; -1 if unknown.
    born: Mapping[str, int] = field(default_factory=dict)

    @property
    def broker_name(self) -> str:
        """The name of the broker."""
        return self.ranges[0].queue.broker


class History:
    """The history that a task reads. It must be the one that was planned."""

    def __init__(self, sight: Sight | None, born: Mapping[str, int]) -> None:
        self._sight = sight
        self._born = born
        self._epoch = "" if sight is None else sight.lineage.epoch

    def born(self, topic: str) -> int:
        """Where the planned topic began in the log. A recreated topic begins elsewhere."""
        return self._born.get(topic, -1)

    def check(self, calls: NativeCalls, epoch: str) -> None:
        """Refuse an answer of a broker that was restored since planning. A restart is fine."""
        if self._sight is None or epoch == self._epoch:
            return
        there = decode_lineage(calls.call(NativeCode.STATUS).header.lineage)
        planned = self._sight.lineage.epoch
        if there is None or not there.without_repairs().holds(planned, self._sight.log_end):
            raise Unavailable(
                "history_changed",
                "the broker was restored since the batch was planned; run it again",
                epoch=epoch,
                planned=planned,
            )
        self._epoch = epoch


def read_partition(
    partition: InputPartition, options: MessageOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Read the messages of these ranges, filtered, in the columns of this schema."""
    # If there is nothing to read, Spark creates its own partition.
    if not isinstance(partition, RangesPartition):
        return
    names = tuple(schema.names)
    made = arrow_schema(schema)
    needed = {c.TAGS: options.tags, c.KEYS: options.keys, c.UNIQUE_KEY: options.keys}
    decoded = (*names, *(name for name, used in needed.items() if used and name not in names))
    history = History(partition.sight, partition.born)
    with NativeCalls(partition.address) as calls:
        for group in side_by_side(partition.ranges):
            place = MessageSource(*group[0].queue[:2])
            for page in _joined_pages(calls, group, options, history):
                for batch in decode_page(page, place, decoded):
                    kept = _filtered(batch, options)
                    arrays = [kept.column(name) for name in names]
                    yield pa.RecordBatch.from_arrays(arrays, schema=made)


def _joined_pages(
    calls: NativeCalls, group: Sequence[QueueSlice], options: MessageOptions, history: History
) -> Iterator[StoredPage]:
    """Read a page of each queue in turn, and join pages up to a common size."""
    held: list[StoredPage] = []
    # One turn over all queues then reads about as much as is decoded together.
    bytes_max = min(max(JOINED_BYTES // len(group), PAGE_BYTES_MIN), PAGE_BYTES_MAX)
    running = deque(_pages(calls, one, options, bytes_max, history) for one in group)
    while running:
        page = next(running[0], None)
        if page is None:
            running.popleft()
            continue
        running.rotate(-1)
        held.append(page)
        if sum(len(one.data) for one in held) >= JOINED_BYTES:
            yield joined(held)
            held.clear()
    if held:
        yield joined(held)


def _pages(
    calls: NativeCalls,
    wanted: QueueSlice,
    options: MessageOptions,
    bytes_max: int,
    history: History,
) -> Iterator[StoredPage]:
    """Read one queue page by page."""
    queue, at, end = wanted
    codes = ",".join(str(tags_code(tag)) for tag in options.tags)
    while at < end:
        header = ReadStoredHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            born=history.born(queue.topic),
            start=at,
            end=end,
            bytes_max=bytes_max,
            tag_codes=codes,
        )
        answer = patiently(
            partial(calls.call_blocks, NativeCode.READ_STORED, header), options.patience_s
        )
        told = answer.header
        history.check(calls, told.epoch)
        there = OffsetRange(told.queue_start, told.queue_end)
        if not (there.start <= at and end <= there.end):
            note_losses([Loss(queue, at, end, there)], options)
        count = len(answer.columns["size"])
        queue_id = np.full(count, queue.queue_id, dtype=np.int32)
        yield StoredPage(queue_id, **answer.columns, data=answer.data)
        # Stop unless the broker moves ahead, so that a wrong answer cannot cause an endless loop.
        if told.next_start <= at or told.next_start >= there.end:
            return
        at = told.next_start


def note_losses(found: list[Loss], options: MessageOptions) -> None:
    """Raise for lost messages, or only log them if `failOnDataLoss` is false."""
    for loss in found:
        if options.fails_on_loss:
            raise loss.error()
        log.warning("data_lost", extra=loss.facts())


def _filtered(batch: pa.RecordBatch, options: MessageOptions) -> pa.RecordBatch:
    if options.tags:
        # Two tags may share a hash code, and the broker compares only codes.
        batch = batch.filter(pc.is_in(batch[c.TAGS], pa.array(options.tags)))
    if options.keys:
        wanted = pa.array(options.keys)
        split = pc.split_pattern(batch[c.KEYS], " ")
        is_hit = pc.is_in(pc.list_flatten(split), wanted)
        hits = pc.unique(pc.list_parent_indices(split).filter(is_hit))
        rows = pa.array(range(batch.num_rows), hits.type)
        by_unique_key = pc.is_in(batch[c.UNIQUE_KEY], wanted)
        batch = batch.filter(pc.or_(pc.is_in(rows, hits), by_unique_key))
    return batch
