"""Decodes pages of stored messages: the broker's bytes in, Arrow columns out.

The work is done per page, except for checksums and compressed bodies. Damage is an error. An intact
but odd message is not an error: its ``problem`` column says what is odd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.source import message_columns as c
from escrowmq.pipeline.source.bodies import inflated
from escrowmq.pipeline.source.column_types import timestamps
from escrowmq.pipeline.source.property_search import Properties, readable
from escrowmq.pipeline.source.slicing import slices
from escrowmq.pipeline.source.stored_records import (
    Array,
    MessageSource,
    Records,
    StoredPage,
    records_of,
)
from escrowmq.protocol.message import properties as names
from escrowmq.protocol.message.compression import INFLATED_BYTES_MAX
from escrowmq.protocol.message.stored_message import (
    SYS_COMMITTED,
    SYS_COMPRESSED,
    SYS_PREPARED,
    SYS_TRANSACTION_MASK,
)

_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), dtype="<u2")
#: Columns that hold a property.
_TEXTS = {
    c.UNIQUE_KEY: names.UNIQ_KEY,
    c.KEYS: names.KEYS,
    c.TAGS: names.TAGS,
    c.TRANSACTION_ID: names.TRANSACTION_ID,
}
#: Columns that hold a field of the record's head.
_FIELDS = {
    c.LOG_OFFSET: np.int64,
    c.FLAG: np.int32,
    c.BORN_AT_MS: np.int64,
    c.STORED_AT_MS: np.int64,
    c.RECONSUME_TIMES: np.int32,
}

INFLATED_TOGETHER_MAX = 4 * INFLATED_BYTES_MAX
"""Limit of the decompressed bytes in one batch."""

Problems: TypeAlias = dict[int, str]
"""Problems of odd messages, by row."""


class _TooMuchInflatedError(Exception):
    """The decompressed bodies of a page do not fit into one batch."""


def decode_page(
    page: StoredPage, place: MessageSource, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Decode these columns of all messages of a page, in order, nearly always as one batch."""
    try:
        batch = _decode(page, place, columns)
    except _TooMuchInflatedError:
        for part in page.halves():
            yield from decode_page(part, place, columns)
    else:
        if batch is not None:
            yield batch


def _decode(
    page: StoredPage, place: MessageSource, columns: Sequence[str]
) -> pa.RecordBatch | None:
    batches = []
    places = []
    for records, rows in records_of(page, place):
        batch = _Decoder(records).batch(columns)
        if rows is None:
            return batch
        batches.append(batch)
        places.append(rows)
    if not batches:
        return None
    order = np.argsort(np.concatenate(places))
    return pa.concat_batches(batches).take(pa.array(order))


class _Decoder:
    """Makes columns from records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._heads = records.heads
        self._buffer = pa.py_buffer(records.page.data)
        place, count = records.place, len(records)
        self._make: dict[str, Callable[[], pa.Array]] = {
            c.BROKER: lambda: pa.repeat(pa.scalar(place.broker), count),
            c.TOPIC: lambda: pa.repeat(pa.scalar(place.topic), count),
            c.QUEUE_ID: lambda: pa.array(records.page.queue_id),
            c.QUEUE_OFFSET: lambda: pa.array(records.page.queue_offset),
            c.VISIBLE_AT_MS: lambda: pa.array(records.page.visible_at_ms),
            c.MESSAGE_ID: self._message_ids,
            c.SYS_FLAG: self._sys_flags,
            c.HALF_OFFSET: self._half_offsets,
            c.BODY: lambda: self._bodies[0],
            c.PROBLEM: self._problems,
            c.PROPERTIES: lambda: self._properties.maps(),  # noqa: PLW0108 - lazy
        }

    def batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Decode these columns."""
        return pa.record_batch({name: self._column(name) for name in columns})

    def _column(self, name: str) -> pa.Array:
        if name in _TEXTS:
            return self._properties.text(_TEXTS[name])
        if name in c.INSTANTS:
            return timestamps(self._column(c.INSTANTS[name]))
        if name in _FIELDS:
            return pa.array(self._heads[name].astype(_FIELDS[name]))
        return self._make[name]()

    def _sys_flags(self) -> pa.Array:
        """The flags as consumers see them: a half message that can be read is committed."""
        flags = self._heads["sys_flag"].astype(np.int32)
        committed = flags & ~SYS_TRANSACTION_MASK | SYS_COMMITTED
        return pa.array(np.where(self._are_halves(), committed, flags))

    def _half_offsets(self) -> pa.Array:
        """The half offset, which a half message stores where others store the queue offset."""
        stated = self._heads["queue_offset"].astype(np.int64)
        return pa.array(stated, mask=~self._are_halves())

    def _are_halves(self) -> Array:
        is_half: Array = self._heads["sys_flag"] & SYS_TRANSACTION_MASK == SYS_PREPARED
        return is_half

    def _message_ids(self) -> pa.Array:
        """The store host and log offset, in hexadecimal."""
        count = len(self._records)
        raw = np.hstack([_as_bytes(self._heads[name]) for name in ("store_host", "log_offset")])
        borders = np.arange(count + 1, dtype=np.int32) * (2 * raw.shape[1])
        digits = pa.py_buffer(_HEX[raw])
        return pa.Array.from_buffers(pa.utf8(), count, [None, pa.py_buffer(borders), digits])

    @cached_property
    def _bodies(self) -> tuple[pa.Array, Problems]:
        bodies = self._records.bodies
        flags = self._heads["sys_flag"].astype(np.int64)
        packed = np.flatnonzero(flags & SYS_COMPRESSED)
        if not len(packed):
            return bodies, {}
        found: list[bytes] = []
        problems: Problems = {}
        total = 0
        for row in packed.tolist():
            body, problem = inflated(bodies[row].as_py(), int(flags[row]))
            total += len(body)
            if found and total > INFLATED_TOGETHER_MAX:
                raise _TooMuchInflatedError
            found.append(body)
            if problem is not None:
                problems[row] = problem
        rows = np.arange(len(bodies))
        rows[packed] = len(bodies) + np.arange(len(packed))
        both = pa.concat_arrays([bodies, pa.array(found, pa.binary())])
        return both.take(pa.array(rows)), problems

    @cached_property
    def _property_strings(self) -> tuple[pa.Array, Problems]:
        return readable(slices(self._buffer, *self._records.properties(), pa.binary()))

    @cached_property
    def _properties(self) -> Properties:
        return Properties(self._property_strings[0])

    def _problems(self) -> pa.Array:
        count = len(self._records)
        problems = self._property_strings[1] | self._bodies[1]
        if not problems:
            return pa.nulls(count, pa.utf8())
        return pa.array([problems.get(row) for row in range(count)], pa.utf8())


def _as_bytes(field: Array) -> Array:
    return np.ascontiguousarray(field).view(np.uint8).reshape(len(field), field.dtype.itemsize)
