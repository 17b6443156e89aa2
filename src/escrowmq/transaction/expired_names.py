"""A fixed-size memory of names that expired: it never forgets one, and mistakes few others for one.

It is a Bloom filter.  With 100,000 names in it one other name in a hundred is taken for expired.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b

BYTES = 128 * 1024
_BITS = BYTES * 8
_HASHES = 4
_HASH_BYTES = 4
EXPECTED_MAX = 100_000
"""Names for which its size was chosen."""


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
            self._packed = zlib.compress(self._bits, level=1)
        return self._packed

    def load(self, packed: bytes) -> None:
        """Be as it was."""
        self._bits = bytearray(zlib.decompress(packed)) if packed else bytearray()
        self._packed = packed


def _places(name: tuple[str, ...]) -> list[int]:
    hashed = blake2b("\0".join(name).encode(errors="surrogatepass"), digest_size=16).digest()
    return [
        int.from_bytes(hashed[at : at + _HASH_BYTES]) % _BITS
        for at in range(0, _HASHES * _HASH_BYTES, _HASH_BYTES)
    ]
