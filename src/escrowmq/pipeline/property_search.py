"""Finding properties in very many messages at once.

All property strings stand one after the other.  Pairs are found by their separators, and a name is
compared eight bytes at a time, at all pairs together.  What counts is what
``protocol/properties.py`` says: the first 0x01 ends a name, a pair with an empty name or value does
not count, and of pairs with one name the last one holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.slicing import slices

Numbers = npt.NDArray[np.int64]

ODD = "odd_properties"

_ASCII_MAX = 0x7F
_NAME_END = 1
_PAIR_END = 2
_WORD = np.dtype("<u8")
#: So that a name can be compared at the last pair, too.
_PADDING = bytes(64)


def readable(strings: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Property strings as UTF-8, and by row what is wrong with one: it is made readable."""
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
        offsets = np.frombuffer(strings.buffers()[1], dtype=np.int32)
        self._offsets = offsets[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
        held = strings.buffers()[2]
        data = b"" if held is None else held.to_pybytes()
        self._data = np.frombuffer(data + _PADDING, dtype=np.uint8)
        self._buffer = pa.py_buffer(self._data)
        self._find_pairs()
        self._words = self._at(self._starts)

    def _find_pairs(self) -> None:
        offsets = self._offsets
        first, last = int(offsets[0]), int(offsets[-1])
        begins = np.zeros(last - first + 1, dtype=np.bool_)
        begins[1:] = self._data[first:last] == _PAIR_END
        # Of an empty string this is the next one's start.
        begins[offsets - first] = True
        starts = np.flatnonzero(begins[:-1]) + first
        nexts = np.concatenate((starts[1:], [last]))
        is_ended = self._data[nexts - 1] == _PAIR_END if len(starts) else False
        self._starts, self._ends = starts, nexts - is_ended
        counts = np.diff(np.searchsorted(starts, offsets))
        self._rows = np.repeat(np.arange(len(counts)), counts)

    def _at(self, places: Numbers) -> npt.NDArray[np.uint64]:
        """The eight bytes at each of these places."""
        words: npt.NDArray[np.uint64] = np.ndarray(
            len(self._data) - _WORD.itemsize + 1, dtype=_WORD, buffer=self._data, strides=(1,)
        )
        return words[places]

    def text(self, name: str) -> pa.Array:
        """The value of this property for each message; null where there is none."""
        wanted = f"{name}\x01".encode()
        hits = np.flatnonzero(_matches(self._words, wanted))
        for at in range(8, len(wanted), 8):
            hits = hits[_matches(self._at(self._starts[hits] + at), wanted[at:])]
        # A value that is not empty: so the name was the pair's own, and not the next one's.
        hits = hits[self._starts[hits] + len(wanted) < self._ends[hits]]
        rows = self._rows[hits]
        is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        hits, rows = hits[is_last], rows[is_last]
        starts = self._offsets[1:].copy()
        ends = starts.copy()
        starts[rows] = self._starts[hits] + len(wanted)
        ends[rows] = self._ends[hits]
        is_missing = np.ones(len(starts), dtype=np.bool_)
        is_missing[rows] = False
        return slices(self._buffer, starts, ends, pa.utf8(), is_missing)

    def maps(self) -> pa.Array:
        """All of them that count, as a map for each message."""
        name_ends = np.flatnonzero(self._data == _NAME_END)
        found = np.append(name_ends, len(self._data))[np.searchsorted(name_ends, self._starts)]
        counts = (found > self._starts) & (found + 1 < self._ends)
        starts, ends, rows = self._starts[counts], self._ends[counts], self._rows[counts]
        found = found[counts]
        names = slices(self._buffer, starts, found, pa.utf8())
        values = slices(self._buffer, found + 1, ends, pa.utf8())
        kept = _last_of_each(rows, names)
        offsets = np.searchsorted(rows[kept], np.arange(len(self._offsets)))
        taken = pa.array(kept)
        return pa.MapArray.from_arrays(
            pa.array(offsets.astype(np.int32)), names.take(taken), values.take(taken)
        )


def _matches(words: npt.NDArray[np.uint64], wanted: bytes) -> npt.NDArray[Any]:
    """Whether words begin with these bytes, the first eight of them."""
    part = wanted[:8]
    mask = int.from_bytes(b"\xff" * len(part), "little")
    matches: npt.NDArray[Any] = (words & np.uint64(mask)) == np.uint64(
        int.from_bytes(part, "little")
    )
    return matches


def _last_of_each(rows: Numbers, names: pa.Array) -> Numbers:
    """The places of the pairs that hold, if a message has a name twice."""
    encoded = names.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = rows * (len(encoded.dictionary) + 1) + codes
    # The first from the end is the last.
    _, from_end = np.unique(pairs[::-1], return_index=True)
    return np.sort(len(pairs) - 1 - from_end)
