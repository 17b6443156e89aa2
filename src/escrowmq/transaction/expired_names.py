"""A fixed-size memory of names that expired: it never forgets one, and mistakes few others for one.

It is a Bloom filter.  With 10,000 names in it, one other name in 2,500 is taken for expired; with
100,000, one in 30.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b

import numpy as np

BYTES = 128 * 1024
_BITS = BYTES * 8
_HASH_BYTES = 4
_SPARSE_MAX = BYTES // 8
"""Bits that are set, up to which their places take fewer bytes than all bits."""
_SPARSE, _DENSE = b"s", b"d"


class ExpiredNames:
    """Names, each made of one or more texts."""

    def __init__(self) -> None:
        #: Made when the first one comes: most stores never expire anything.
        self._bits = bytearray()
        self._packed: bytes | None = b""

    def add(self, *name: str) -> None:
        """Remember a name; one that is known changes nothing."""
        if not self._bits:
            self._bits = bytearray(BYTES)
        for place in _places(name):
            self._bits[place >> 3] |= 1 << (place & 7)
        self._packed = None

    def may_have(self, *name: str) -> bool:
        """False only if the name was never added."""
        bits = self._bits
        return bool(bits) and all(bits[at >> 3] >> (at & 7) & 1 for at in _places(name))

    def packed(self) -> bytes:
        """All of it, for a checkpoint: few names take few bytes."""
        if self._packed is None:
            self._packed = _pack(self._bits)
        return self._packed

    def load(self, packed: bytes) -> None:
        """Be as it was."""
        self._bits = _unpack(packed) if packed else bytearray()
        self._packed = packed


def _places(name: tuple[str, ...]) -> tuple[int, int]:
    hashed = blake2b("\0".join(name).encode(errors="surrogatepass"), digest_size=8).digest()
    first, second = hashed[:_HASH_BYTES], hashed[_HASH_BYTES:]
    return int.from_bytes(first) % _BITS, int.from_bytes(second) % _BITS


def _pack(bits: bytearray) -> bytes:
    places = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little"))
    if len(places) > _SPARSE_MAX:
        return _DENSE + zlib.compress(bits, level=1)
    # By the distance from one to the next: high bytes, which are nearly all 0, and low ones apart.
    gaps = np.diff(places, prepend=0).astype("<u4").view(np.uint8).reshape(-1, 4)
    return _SPARSE + zlib.compress(gaps.T.tobytes())


def _unpack(packed: bytes) -> bytearray:
    data = zlib.decompress(packed[1:])
    if packed[:1] == _DENSE:
        return bytearray(data)
    gaps = np.frombuffer(data, np.uint8).reshape(4, -1).T.copy().view("<u4").ravel()
    is_set = np.zeros(_BITS, dtype=np.uint8)
    is_set[np.cumsum(gaps)] = 1
    return bytearray(np.packbits(is_set, bitorder="little").tobytes())
