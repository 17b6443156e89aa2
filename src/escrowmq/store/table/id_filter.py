"""A Bloom filter that recognizes nearly every new transaction id as new.

For every half message, the broker must know whether it has seen the id; finding out from the rows
takes a scan. The filter avoids the scan with two bits per id, in a bitmap of at least eight bits
per row. About one new id in fifty looks like a known one and costs a scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

_BITS_PER_ROW = 8
_BITS_MIN = 1 << 16
_ODD = 0x9E3779B1
_WORD = 0xFFFF_FFFF


class IdFilter:
    """The set of all id hashes in the table, with a few false positives."""

    def __init__(self) -> None:
        self.added = 0
        self._mask = _BITS_MIN - 1
        self._bits = bytearray(_BITS_MIN // 8)

    @property
    def is_full(self) -> bool:
        """Whether the filter should be rebuilt larger."""
        return self.added * _BITS_PER_ROW > self._mask + 1

    def add(self, id_hash: int) -> None:
        """Add one hash."""
        first = id_hash & self._mask
        second = (id_hash * _ODD & _WORD) >> 3 & self._mask
        self._bits[first >> 3] |= 1 << (first & 7)
        self._bits[second >> 3] |= 1 << (second & 7)
        self.added += 1

    def may_hold(self, id_hash: int) -> bool:
        """False only if the hash was never added."""
        first = id_hash & self._mask
        if not self._bits[first >> 3] >> (first & 7) & 1:
            return False
        second = (id_hash * _ODD & _WORD) >> 3 & self._mask
        return bool(self._bits[second >> 3] >> (second & 7) & 1)

    def rebuild(self, columns: Iterable[npt.NDArray[np.uint32]], rows: int) -> None:
        """Rebuild from these hashes, with room for as many again."""
        bits = _BITS_MIN
        while bits < 2 * _BITS_PER_ROW * rows:
            bits *= 2
        self._mask = bits - 1
        self._bits = bytearray(bits // 8)
        self.added = 0
        for hashes in columns:
            self.add_many(hashes)

    def add_many(self, hashes: npt.NDArray[np.uint32]) -> None:
        """Add these hashes."""
        marked = np.frombuffer(self._bits, dtype=np.uint8)
        mask = np.uint32(self._mask)
        second = (hashes * np.uint32(_ODD)) >> np.uint32(3)
        for places in (hashes & mask, second & mask):
            np.bitwise_or.at(marked, places >> 3, (1 << (places & 7)).astype(np.uint8))
        self.added += len(hashes)
