"""Rows of a DataFrame as half messages: Arrow in, Arrow out, no Python object per row.

What cannot be sent is refused before anything of its request leaves, with its row and its column.
Rows are counted from 0 within what one task writes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.sink_columns import (
    BODY,
    BORN_AT_MS,
    DELAY_MS,
    KEY,
    KEYS,
    PROPERTIES,
    QUEUE_ID,
    TAGS,
    TOPIC,
    VALUE,
)
from escrowmq.protocol import properties as wire
from escrowmq.protocol.limits import BODY_BYTES_MAX
from escrowmq.protocol.properties import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from escrowmq.pipeline.sink_topics import SinkTopics

#: What the broker adds to a message's properties, at most: transaction, group, topic, cluster.
ADDED_BYTES_MAX = 1_024
COUNTER_DIGITS = 12
ANY_QUEUE = -1

#: Names that the sink or the broker sets.
_RESERVED = pa.array(
    sorted(
        {
            wire.UNIQ_KEY,
            wire.KEYS,
            wire.TAGS,
            wire.WAIT,
            wire.PGROUP,
            wire.TRAN_MSG,
            wire.TRANSACTION_ID,
            wire.DELAY,
            wire.TIMER_DELAY_MS,
            wire.TIMER_DELAY_SEC,
            wire.TIMER_DELIVER_MS,
            wire.CHECK_IMMUNITY_TIME_IN_SECONDS,
        }
    )
)
_SEPARATORS = "[\x01\x02]"
_EMPTY = pa.scalar("")


class MessageMaker:
    """Makes the rows of HOLD_HALVES; one for each attempt."""

    def __init__(self, topics: SinkTopics, topic: str, id_prefix: str) -> None:
        self._topics = topics
        #: Of all rows; empty if a column says it.
        self._topic = topic
        self._id_prefix = id_prefix
        #: Rows so far.
        self.rows = 0

    def messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """These rows as messages; what is wrong with one of them is raised."""
        count = batch.num_rows
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        topic = self._topic_of(given, count)
        sent = pa.record_batch(
            {
                "topic": topic,
                "queue_id": self._queues(given, topic, count),
                "body": self._bodies(given),
                "properties": self._properties(given, count),
                "flag": _zeros(count, pa.int32()),
                "sys_flag": _zeros(count, pa.int32()),
                "born_at_ms": self._born(given, count),
            }
        )
        self.rows += count
        return sent

    # Columns.

    def _bodies(self, given: dict[str, pa.Array]) -> pa.Array:
        name = BODY if BODY in given else VALUE
        bodies = given[name]
        self._refuse(pc.is_null(bodies), "body_illegal", "a message has a body", name)
        bodies = bodies.cast(pa.binary())
        too_large = pc.greater(pc.binary_length(bodies), BODY_BYTES_MAX)
        self._refuse(too_large, "body_too_large", f"at most {BODY_BYTES_MAX} bytes", name)
        return bodies

    def _topic_of(self, given: dict[str, pa.Array], count: int) -> pa.Array:
        topics = pa.repeat(self._topic, count) if self._topic else _text(given[TOPIC])
        self._refuse(pc.is_null(topics), "topic_illegal", "a message has a topic", TOPIC)
        for name in pc.unique(topics).to_pylist():
            try:
                self._topics.queue_count(name)
            except RequestRefused as refused:
                row = self.rows + pc.index(topics, name).as_py()
                raise RequestRefused(
                    refused.code, refused.message, **refused.fields, row=row, column=TOPIC
                ) from None
        return topics

    def _queues(self, given: dict[str, pa.Array], topics: pa.Array, count: int) -> pa.Array:
        queues = pa.repeat(pa.scalar(ANY_QUEUE, pa.int64()), count)
        if KEY not in given and QUEUE_ID not in given:
            return queues.cast(pa.int32())
        named = pc.dictionary_encode(topics)
        counts = np.array([self._topics.queue_count(name) for name in named.dictionary.to_pylist()])
        queue_counts = pa.array(counts[named.indices.to_numpy()])
        if KEY in given:
            queues = pc.coalesce(_queues_by_key(_text(given[KEY]), queue_counts), queues)
        if QUEUE_ID in given:
            chosen = given[QUEUE_ID].cast(pa.int64())
            is_any = pc.equal(chosen, ANY_QUEUE)
            is_there = pc.and_(pc.greater_equal(chosen, 0), pc.less(chosen, queue_counts))
            self._refuse(
                pc.invert(pc.or_(is_any, is_there)),
                "queue_id_illegal",
                "a queue of the topic, or -1 for any",
                QUEUE_ID,
            )
            queues = pc.coalesce(pc.if_else(is_any, None, chosen), queues)
        return queues.cast(pa.int32())

    def _born(self, given: dict[str, pa.Array], count: int) -> pa.Array:
        now = pa.scalar(int(time.time() * 1_000), pa.int64())
        if BORN_AT_MS not in given:
            return pa.repeat(now, count)
        born = pc.fill_null(given[BORN_AT_MS].cast(pa.int64()), now)
        self._refuse(pc.less(born, 0), "number_out_of_range", "0 or more", BORN_AT_MS)
        return born

    def _properties(self, given: dict[str, pa.Array], count: int) -> pa.Array:
        numbers = pa.array(np.arange(self.rows, self.rows + count)).cast(pa.string())
        counted = pc.utf8_lpad(numbers, COUNTER_DIGITS, "0")
        pairs = [f"{wire.UNIQ_KEY}\x01{self._id_prefix}", counted, "\x02"]
        keys = self._keys(given)
        if keys is not None:
            pairs.append(_pair(wire.KEYS, keys))
        if TAGS in given:
            tags = self._clean(_text(given[TAGS]), TAGS)
            self._refuse(pc.match_substring(tags, "|"), "tag_illegal", "a tag has no |", TAGS)
            pairs.append(_pair(wire.TAGS, tags))
        if DELAY_MS in given:
            delays = given[DELAY_MS].cast(pa.int64())
            self._refuse(pc.less(delays, 0), "delay_illegal", "0 or more", DELAY_MS)
            waits = pc.if_else(pc.greater(delays, 0), _text(delays), None)
            pairs.append(_pair(wire.TIMER_DELAY_MS, waits))
        if PROPERTIES in given:
            pairs.append(self._mapped(given[PROPERTIES]))
        joined = pc.binary_join_element_wise(*pairs, "")
        self._refuse(
            pc.greater(pc.binary_length(joined), PROPERTIES_BYTES_MAX - ADDED_BYTES_MAX),
            "properties_too_large",
            f"keys, tags and properties have {PROPERTIES_BYTES_MAX - ADDED_BYTES_MAX} bytes",
            PROPERTIES,
        )
        return joined

    def _keys(self, given: dict[str, pa.Array]) -> pa.Array | None:
        """All keys with blanks between them; the one that chooses the queue is the first."""
        key, keys = None, None
        if KEY in given:
            key = self._clean(_text(given[KEY]), KEY)
            has_blank = pc.match_substring(key, " ")
            self._refuse(has_blank, "key_illegal", "a key has no blanks", KEY)
        if KEYS in given:
            keys = self._clean(self._joined(given[KEYS]), KEYS)
        if key is None or keys is None:
            return keys if key is None else key
        return pc.coalesce(pc.binary_join_element_wise(key, keys, " "), key, keys)

    def _joined(self, keys: pa.Array) -> pa.Array:
        """Texts with blanks between them, which they may be already."""
        if not pa.types.is_list(keys.type) and not pa.types.is_large_list(keys.type):
            return _text(keys)
        flat = _text(pc.list_flatten(keys))
        is_wrong = pc.fill_null(pc.match_substring(flat, " "), True)  # noqa: FBT003 - nor a null
        rows = pc.list_parent_indices(keys).to_numpy()
        self._refuse(is_wrong, "key_illegal", "a key is a text without blanks", KEYS, rows)
        return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")

    def _mapped(self, maps: pa.MapArray) -> pa.Array:
        """The property string of each row's map; empty for no map."""
        offsets = maps.offsets.to_numpy()
        start, end = int(offsets[0]), int(offsets[-1])
        names = _text(maps.keys[start:end])
        values = _text(maps.items[start:end])
        rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
        for is_wrong, code, text in (
            (_is_unfit(names), "property_illegal", "a name is empty, or has 0x01 or 0x02 in it"),
            (_is_unfit(values), "property_illegal", "a value is empty, or has 0x01 or 0x02 in it"),
            (pc.is_in(names, value_set=_RESERVED), "property_reserved", "choose another name"),
        ):
            self._refuse(is_wrong, code, text, PROPERTIES, rows)
        pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - start), pairs), "")

    # What cannot be sent.

    def _clean(self, texts: pa.Array, column: str) -> pa.Array:
        """These texts; an empty one counts as none."""
        is_bad = pc.match_substring_regex(texts, _SEPARATORS)
        self._refuse(is_bad, "property_illegal", "0x01 and 0x02 are not for texts", column)
        return pc.if_else(pc.equal(texts, _EMPTY), None, texts)

    def _refuse(
        self,
        is_wrong: pa.Array,
        code: str,
        text: str,
        column: str,
        rows: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Raise it for the first that is wrong; ``rows`` says which row each belongs to."""
        at = pc.index(is_wrong, True).as_py()
        if at >= 0:
            row = self.rows + (at if rows is None else int(rows[at]))
            raise RequestRefused(code, text, column=column, row=row)


def _text(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string())


def _zeros(count: int, kind: Any) -> pa.Array:  # noqa: ANN401 - a type of Arrow's
    return pa.repeat(pa.scalar(0, kind), count)


def _pair(name: str, values: pa.Array) -> pa.Array:
    """One property of each row; empty where there is none."""
    return pc.fill_null(pc.binary_join_element_wise(f"{name}\x01", values, "\x02", ""), "")


def _is_unfit(texts: pa.Array) -> pa.Array:
    has_separator = pc.match_substring_regex(texts, _SEPARATORS)
    return pc.fill_null(pc.or_(pc.equal(texts, _EMPTY), has_separator), True)  # noqa: FBT003


def _queues_by_key(keys: pa.Array, queue_counts: pa.Array) -> pa.Array:
    """The queue of each key, as the SDK's producers choose it; null without a key."""
    encoded = pc.dictionary_encode(pc.if_else(pc.equal(keys, _EMPTY), None, keys))
    hashes = [crc32(key) for key in encoded.dictionary.cast(pa.binary()).to_pylist()]
    by_row = pa.array(hashes, pa.int64()).take(encoded.indices)
    whole = pc.multiply(pc.divide(by_row, queue_counts), queue_counts)
    return pc.subtract(by_row, whole)
