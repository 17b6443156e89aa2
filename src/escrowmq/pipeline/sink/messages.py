"""Turns rows of a DataFrame into half messages: Arrow in, Arrow out, no Python object per row.

A bad row is refused before its request is sent, with its row number and column.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.sink.columns import BODY, BORN_AT, BORN_AT_MS, KEY, QUEUE_ID, TOPIC, VALUE
from escrowmq.pipeline.sink.properties import property_strings
from escrowmq.pipeline.sink.rows import Numbers, SinkRows
from escrowmq.pipeline.sink.topics import SinkTopics
from escrowmq.protocol.message.limits import BODY_BYTES_MAX

ANY_QUEUE = -1


class MessageMaker:
    """Makes the rows of HOLD_HALVES. There is one maker for each attempt."""

    def __init__(
        self, topics: SinkTopics, topic: str, id_prefix: str, others: Sequence[SinkTopics] = ()
    ) -> None:
        #: The topics of each broker. A topic that any broker lacks is refused, wherever a row would
        #: go.
        self._topics = (topics, *others)
        #: The topic of all rows; empty if a column names it.
        self._topic = topic
        self._id_prefix = id_prefix
        #: The number of rows so far.
        self.made = 0

    def messages(self, batch: pa.RecordBatch, places: Numbers | None = None) -> pa.RecordBatch:
        """Make these rows into messages, or raise for a bad row.

        ``places`` holds the index of the broker for each row, if there are several.
        """
        rows = SinkRows(batch, self.made)
        topics = self._topics_of(rows)
        zeros = pa.repeat(pa.scalar(0, pa.int32()), rows.count)
        messages = pa.record_batch(
            {
                "topic": topics,
                "queue_id": self._queues(rows, topics, places),
                "body": _bodies(rows),
                "properties": property_strings(rows, self._id_prefix),
                "flag": zeros,
                "sys_flag": zeros,
                "born_at_ms": _born(rows),
            }
        )
        self.made += rows.count
        return messages

    def _topics_of(self, rows: SinkRows) -> pa.Array:
        topics = pa.repeat(self._topic, rows.count) if self._topic else rows.texts(TOPIC)
        rows.refuse_where(pc.is_null(topics), "topic_illegal", "a message must have a topic", TOPIC)
        for name in pc.unique(topics).to_pylist():
            try:
                for there in self._topics:
                    there.queue_count(name)
            except RequestRefused as refused:
                row = rows.first + pc.index(topics, name).as_py()
                facts = {**refused.fields, "column": TOPIC, "row": row}
                raise RequestRefused(refused.code, refused.message, **facts) from None
        return topics

    def _queues(self, rows: SinkRows, topics: pa.Array, places: Numbers | None) -> pa.Array:
        queues = pa.repeat(pa.scalar(ANY_QUEUE, pa.int64()), rows.count)
        if KEY not in rows and QUEUE_ID not in rows:
            return queues.cast(pa.int32())
        named = pc.dictionary_encode(topics)
        names = named.dictionary.to_pylist()
        counts = np.array([[there.queue_count(name) for name in names] for there in self._topics])
        queue_counts = pa.array(counts[0 if places is None else places, named.indices.to_numpy()])
        if KEY in rows:
            hashes, indices = rows.key_hashes(KEY)
            # As the SDK's producers choose it; null without a key.
            by_row = pa.array(hashes, pa.int64()).take(indices)
            whole = pc.multiply(pc.divide(by_row, queue_counts), queue_counts)
            queues = pc.coalesce(pc.subtract(by_row, whole), queues)
        if QUEUE_ID in rows:
            chosen = rows.numbers(QUEUE_ID)
            is_any = pc.equal(chosen, ANY_QUEUE)
            is_there = pc.and_(pc.greater_equal(chosen, 0), pc.less(chosen, queue_counts))
            rows.refuse_where(
                pc.invert(pc.or_(is_any, is_there)),
                "queue_id_illegal",
                "must be a queue of the topic, or -1 for any queue",
                QUEUE_ID,
            )
            queues = pc.coalesce(pc.if_else(is_any, None, chosen), queues)
        return queues.cast(pa.int32())


def _bodies(rows: SinkRows) -> pa.Array:
    name = BODY if BODY in rows else VALUE
    rows.refuse_where(pc.is_null(rows[name]), "body_illegal", "a message must have a body", name)
    bodies = rows[name].cast(pa.binary())
    is_too_large = pc.greater(pc.binary_length(bodies), BODY_BYTES_MAX)
    rows.refuse_where(is_too_large, "body_too_large", f"at most {BODY_BYTES_MAX} bytes", name)
    return bodies


def _born(rows: SinkRows) -> pa.Array:
    now = pa.scalar(int(time.time() * 1_000), pa.int64())
    if BORN_AT in rows:
        name, given = BORN_AT, rows.instants_ms(BORN_AT)
    elif BORN_AT_MS in rows:
        name, given = BORN_AT_MS, rows.numbers(BORN_AT_MS)
    else:
        return pa.repeat(now, rows.count)
    born = pc.fill_null(given, now)
    text = "must be in 1970 or later, which is 0 ms or more"
    rows.refuse_where(pc.less(born, 0), "number_out_of_range", text, name)
    return born
