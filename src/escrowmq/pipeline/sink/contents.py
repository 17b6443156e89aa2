"""A fingerprint of the rows of a named batch, by which the same rows are recognized.

It does not depend on the order of the rows or on their partitions, because a repetition may have
others.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

_BYTES = 8
_MODULUS = 2 ** (8 * _BYTES)


class RowSum:
    """The row count of one attempt, and the sum of the rows' hashes."""

    def __init__(self, topic: str) -> None:
        self._topic = topic.encode()
        self.rows = 0
        self.total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the DataFrame."""
        names = sorted(batch.schema.names)
        columns = [_values(batch.column(name)) for name in names]
        for values in zip(*columns, strict=True):
            # A null counts the same as a missing column.
            given = [
                (name, _plain(value))
                for name, value in zip(names, values, strict=True)
                if value is not None
            ]
            digest = blake2b(repr((self._topic, given)).encode(), digest_size=_BYTES).digest()
            self.total = (self.total + int.from_bytes(digest)) % _MODULUS
        self.rows += batch.num_rows


def content_of(sums: Iterable[tuple[int, int]]) -> str:
    """The fingerprint of a batch, from the row counts and sums of its attempts."""
    counted = list(sums)
    rows = sum(rows for rows, _ in counted)
    total = sum(total for _, total in counted) % _MODULUS
    return f"{rows}:{total:0{2 * _BYTES}x}"


def _values(column: pa.Array) -> list[Any]:
    """The values of a column.

    A timestamp becomes a number, which is the same in every time zone.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a column has
    """Normalize a value: a string equals its bytes, and the entries of a map have no order."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        items = [_plain(one) for one in value]
        return sorted(items) if value and isinstance(value[0], tuple) else items
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value
