"""Rows of a DataFrame that become messages, and the refusal of a bad one."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.model.errors import RequestRefused

Numbers = np.ndarray[Any, np.dtype[Any]]

EMPTY = pa.scalar("")
#: The most characters of a property's name that an error shows.
NAME_CHARS_MAX = 64


class SinkRows:
    """An Arrow batch. Its rows are numbered within all rows that one task writes."""

    def __init__(self, batch: pa.RecordBatch, first: int) -> None:
        self.count: int = batch.num_rows
        self.first = first
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def __getitem__(self, column: str) -> pa.Array:
        return self._columns[column]

    def texts(self, column: str) -> pa.Array:
        """A column of strings."""
        return self[column].cast(pa.string())

    def key_hashes(self, column: str) -> tuple[list[int], pa.Array]:
        """The hashes of the distinct keys, and the index of each row's hash; null without a key."""
        keys = self.texts(column)
        encoded = pc.dictionary_encode(pc.if_else(pc.equal(keys, EMPTY), None, keys))
        hashes = [crc32(key) for key in encoded.dictionary.cast(pa.binary()).to_pylist()]
        return hashes, encoded.indices

    def numbers(self, column: str) -> pa.Array:
        """A column of integers."""
        return self[column].cast(pa.int64())

    def instants_ms(self, column: str) -> pa.Array:
        """A column of timestamps, in whole milliseconds since 1970."""
        instants_us = self[column].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        return pc.divide(instants_us, 1_000)

    def refuse_where(
        self,
        is_wrong: pa.Array,
        code: str,
        text: str,
        column: str,
        rows: Any = None,  # noqa: ANN401 - a numpy array
        *,
        names: pa.Array | None = None,
    ) -> None:
        """Raise an error for the first wrong value.

        ``rows`` says which row each value belongs to, ``names`` which property it is.
        """
        at = pc.index(is_wrong, True).as_py()
        if at >= 0:
            row = at if rows is None else int(rows[at])
            named = {} if names is None else {"property": str(names[at].as_py())[:NAME_CHARS_MAX]}
            raise RequestRefused(code, text, column=column, row=self.first + row, **named)
