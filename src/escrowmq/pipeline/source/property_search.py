"""Searches the properties of many messages at once, as Arrow arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.source.slicing import slices
from escrowmq.protocol.message.property_columns import NAME_END, PropertyColumns

Numbers = npt.NDArray[np.int64]

ODD = "odd_properties"

_ASCII_MAX = 0x7F


def readable(strings: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Property strings as valid UTF-8, and the rows whose bytes had to be replaced."""
    held = strings.buffers()[2]
    data = np.frombuffer(held, dtype=np.uint8) if held is not None else np.zeros(0, np.uint8)
    if not len(data) or int(data.max()) <= _ASCII_MAX:
        return strings, {}
    texts = []
    problems = {}
    for row, raw in enumerate(strings.to_pylist()):
        try:
            raw.decode()
        except UnicodeDecodeError:
            problems[row] = ODD
        texts.append(raw.decode(errors="replace").encode())
    return pa.array(texts, pa.binary()), problems


class Properties:
    """The property strings of some messages: an Arrow array of bytes."""

    def __init__(self, strings: pa.Array) -> None:
        every = np.frombuffer(strings.buffers()[1], dtype=np.int32)
        offsets = every[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
        held = strings.buffers()[2]
        self._found = PropertyColumns(b"" if held is None else held.to_pybytes(), offsets)
        self._buffer = pa.py_buffer(self._found.data)

    def text(self, name: str) -> pa.Array:
        """The value of this property for each message; null where there is none."""
        rows, value_starts, value_ends = self._found.find(name)
        starts = self._found.offsets[1:].copy()
        ends = starts.copy()
        starts[rows], ends[rows] = value_starts, value_ends
        is_missing = np.ones(len(starts), dtype=np.bool_)
        is_missing[rows] = False
        return slices(self._buffer, starts, ends, pa.utf8(), is_missing)

    def maps(self) -> pa.Array:
        """All valid properties, as one map for each message."""
        pairs = self._found
        name_ends = np.flatnonzero(pairs.data == NAME_END)
        found = np.append(name_ends, len(pairs.data))[np.searchsorted(name_ends, pairs.starts)]
        counts = (found > pairs.starts) & (found + 1 < pairs.ends)
        starts, ends, rows = pairs.starts[counts], pairs.ends[counts], pairs.rows[counts]
        found = found[counts]
        names = slices(self._buffer, starts, found, pa.utf8())
        values = slices(self._buffer, found + 1, ends, pa.utf8())
        kept = _last_of_each(rows, names)
        offsets = np.searchsorted(rows[kept], np.arange(len(pairs.offsets)))
        taken = pa.array(kept)
        return pa.MapArray.from_arrays(
            pa.array(offsets.astype(np.int32)), names.take(taken), values.take(taken)
        )


def _last_of_each(rows: Numbers, names: pa.Array) -> Numbers:
    """The indexes of the pairs that count: the last one if a message has a name twice."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = rows * (len(encoded.dictionary) + 1) + codes
    # The first from the end is the last pair.
    _, from_end = np.unique(pairs[::-1], return_index=True)
    return np.sort(len(pairs) - 1 - from_end)
