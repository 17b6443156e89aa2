"""Builds the property strings of the sink's messages, a whole column at a time.

RocketMQ's format: name, 0x01, value, 0x02, and so on. An empty string counts as missing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.sink.columns import DELAY_MS, KEY, KEYS, PROPERTIES, TAGS
from escrowmq.pipeline.sink.rows import EMPTY, SinkRows
from escrowmq.protocol.message import properties as wire

ADDED_BYTES_MAX = 1_024
"""The most bytes that the broker adds to the properties: transaction, group, topic, cluster."""

COUNTER_DIGITS = 12
_BYTES_MAX = wire.PROPERTIES_BYTES_MAX - ADDED_BYTES_MAX
_SEPARATORS = "[\x01\x02]"
#: Property names that the sink or the broker sets.
_RESERVED = pa.array([*wire.SET_BY_PRODUCERS, wire.TRANSACTION_ID])


def property_strings(rows: SinkRows, id_prefix: str) -> pa.Array:
    """The property string of each row, with a unique message id."""
    numbers = pa.array(np.arange(rows.first, rows.first + rows.count)).cast(pa.string())
    pairs = [
        f"{wire.UNIQ_KEY}\x01{id_prefix}",
        pc.utf8_lpad(numbers, COUNTER_DIGITS, "0"),
        "\x02",
    ]
    keys = _all_keys(rows)
    if keys is not None:
        pairs.append(_pair(wire.KEYS, keys))
    if TAGS in rows:
        tags = _clean(rows, rows.texts(TAGS), TAGS)
        rows.refuse_where(
            pc.match_substring(tags, "|"), "tag_illegal", "a tag must not contain |", TAGS
        )
        pairs.append(_pair(wire.TAGS, tags))
    if DELAY_MS in rows:
        delays = rows.numbers(DELAY_MS)
        rows.refuse_where(pc.less(delays, 0), "delay_illegal", "must be 0 or more", DELAY_MS)
        waits = pc.if_else(pc.greater(delays, 0), delays.cast(pa.string()), None)
        pairs.append(_pair(wire.TIMER_DELAY_MS, waits))
    if PROPERTIES in rows:
        pairs.append(_mapped(rows))
    joined = pc.binary_join_element_wise(*pairs, "")
    rows.refuse_where(
        pc.greater(pc.binary_length(joined), _BYTES_MAX),
        "properties_too_large",
        f"keys, tags and properties may have at most {_BYTES_MAX} bytes together",
        PROPERTIES,
    )
    return joined


def _all_keys(rows: SinkRows) -> pa.Array | None:
    """All keys separated by blanks. The key that chooses the queue comes first."""
    key = keys = None
    if KEY in rows:
        key = _clean(rows, rows.texts(KEY), KEY)
        rows.refuse_where(
            pc.match_substring(key, " "), "key_illegal", "a key must not contain blanks", KEY
        )
    if KEYS in rows:
        keys = _clean(rows, _joined_keys(rows), KEYS)
    if key is None or keys is None:
        return keys if key is None else key
    return pc.coalesce(pc.binary_join_element_wise(key, keys, " "), key, keys)


def _joined_keys(rows: SinkRows) -> pa.Array:
    keys = rows[KEYS]
    if not pa.types.is_list(keys.type) and not pa.types.is_large_list(keys.type):
        return rows.texts(KEYS)
    flat = pc.list_flatten(keys).cast(pa.string())
    is_wrong = pc.fill_null(pc.match_substring(flat, " "), True)  # noqa: FBT003 - null is wrong too
    parents = pc.list_parent_indices(keys).to_numpy()
    rows.refuse_where(
        is_wrong, "key_illegal", "each key must be a string without blanks", KEYS, parents
    )
    return pc.binary_join(keys.cast(pa.list_(pa.string())), " ")


def _mapped(rows: SinkRows) -> pa.Array:
    """The pairs of each row's map; empty for no map."""
    maps = rows[PROPERTIES]
    offsets = maps.offsets.to_numpy()
    start, end = int(offsets[0]), int(offsets[-1])
    names = maps.keys[start:end].cast(pa.string())
    values = maps.items[start:end].cast(pa.string())
    parents = np.repeat(np.arange(rows.count), np.diff(offsets))
    for is_wrong, code, text in (
        (_is_unfit(names), "property_illegal", "a name must not be empty or contain 0x01 or 0x02"),
        (
            _is_unfit(values),
            "property_illegal",
            "a value must not be empty or contain 0x01 or 0x02",
        ),
        (
            pc.is_in(names, value_set=_RESERVED),
            "property_reserved",
            "this name is reserved; choose another",
        ),
    ):
        rows.refuse_where(is_wrong, code, text, PROPERTIES, parents, names=names)
    pairs = pc.binary_join_element_wise(names, "\x01", values, "\x02", "")
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - start), pairs), "")


def _pair(name: str, values: pa.Array) -> pa.Array:
    """One property of each row; empty where there is none."""
    return pc.fill_null(pc.binary_join_element_wise(f"{name}\x01", values, "\x02", ""), "")


def _clean(rows: SinkRows, texts: pa.Array, column: str) -> pa.Array:
    has_separator = pc.match_substring_regex(texts, _SEPARATORS)
    rows.refuse_where(has_separator, "property_illegal", "must not contain 0x01 or 0x02", column)
    return pc.if_else(pc.equal(texts, EMPTY), None, texts)


def _is_unfit(texts: pa.Array) -> pa.Array:
    has_separator = pc.match_substring_regex(texts, _SEPARATORS)
    return pc.fill_null(pc.or_(pc.equal(texts, EMPTY), has_separator), True)  # noqa: FBT003 - nor may it be null
