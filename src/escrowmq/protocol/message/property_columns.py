"""Find properties in many messages at once.

All property strings are in one buffer. The search finds pairs by their separators, and compares a
name eight bytes at a time, with all pairs in one numpy operation. The rules are those of
``properties.py``: the first 0x01 ends a name, a pair with an empty name or value is ignored, and if
a name occurs twice the last value counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

NAME_END = 1
PAIR_END = 2

_WORD = np.dtype("<u8")
#: Lets the search read eight bytes at a time up to the last pair.
_PADDING = bytes(64)


class PropertyColumns:
    """The property strings ``data[offsets[i]:offsets[i + 1]]``."""

    def __init__(self, data: bytes | memoryview, offsets: Numbers) -> None:
        self.data = np.frombuffer(bytes(data) + _PADDING, dtype=np.uint8)
        self.offsets = offsets
        self._find_pairs()
        self._words = self._at(self.starts)

    def _find_pairs(self) -> None:
        offsets = self.offsets
        first, last = int(offsets[0]), int(offsets[-1])
        begins = np.zeros(last - first + 1, dtype=np.bool_)
        begins[1:] = self.data[first:last] == PAIR_END
        # For an empty string this marks the start of the next string.
        begins[offsets - first] = True
        #: Start and end of each pair, and the index of its message.
        self.starts: Numbers = np.flatnonzero(begins[:-1]) + first
        nexts = np.concatenate((self.starts[1:], [last]))
        is_ended = self.data[nexts - 1] == PAIR_END if len(self.starts) else False
        self.ends: Numbers = nexts - is_ended
        counts = np.diff(np.searchsorted(self.starts, offsets))
        self.rows: Numbers = np.repeat(np.arange(len(counts)), counts)

    def _at(self, places: Numbers) -> npt.NDArray[np.uint64]:
        """Return the eight bytes at each position."""
        words: npt.NDArray[np.uint64] = np.ndarray(
            len(self.data) - _WORD.itemsize + 1, dtype=_WORD, buffer=self.data, strides=(1,)
        )
        return words[places]

    def find(self, name: str) -> tuple[Numbers, Numbers, Numbers]:
        """Return the messages with this property, and where its value starts and ends in each."""
        wanted = f"{name}\x01".encode()
        hits = np.flatnonzero(_matches(self._words, wanted))
        for at in range(8, len(wanted), 8):
            hits = hits[_matches(self._at(self.starts[hits] + at), wanted[at:])]
        # Require a non-empty value inside the pair. A name that matched across pairs fails this.
        hits = hits[self.starts[hits] + len(wanted) < self.ends[hits]]
        rows = self.rows[hits]
        is_last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
        hits = hits[is_last]
        return rows[is_last], self.starts[hits] + len(wanted), self.ends[hits]


def _matches(words: npt.NDArray[np.uint64], wanted: bytes) -> npt.NDArray[Any]:
    """Return whether each word starts with ``wanted``, or with its first eight bytes."""
    part = wanted[:8]
    mask = int.from_bytes(b"\xff" * len(part), "little")
    matches: npt.NDArray[Any] = (words & np.uint64(mask)) == np.uint64(
        int.from_bytes(part, "little")
    )
    return matches
