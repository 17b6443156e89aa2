"""Fixed-size memories of expired names, and of the numbers that they reached.

Both take the same space for one name as for a million. Both err on the safe side: they never forget
a name, and never return a number that is too low.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

BYTES = 128 * 1024
"""Size of each memory once it holds a name."""
_BITS = BYTES * 8
_SLOTS = BYTES // 8
_HASH_BYTES = 4


class _Memory:
    """Bytes that a checkpoint saves, copied once for each change."""

    def __init__(self) -> None:
        #: Empty until the first name is added: most stores never expire anything.
        self._bytes = bytearray()
        self._saved: bytes | None = b""

    def _to_change(self) -> bytearray:
        if not self._bytes:
            self._bytes = bytearray(BYTES)
        self._saved = None
        return self._bytes

    def saved(self) -> bytes:
        """Return the content for a checkpoint."""
        if self._saved is None:
            self._saved = bytes(self._bytes)
        return self._saved

    def load(self, saved: bytes) -> None:
        """Load the content of a checkpoint."""
        self._bytes, self._saved = bytearray(saved), saved


class ExpiredNames(_Memory):
    """Bloom filter of names, each made of one or more texts.

    With 10,000 names in it, one other name in 2,500 is a false positive; with 100,000, one in 30.
    """

    def add(self, *name: str) -> None:
        """Add a name; a known one changes nothing."""
        bits = self._to_change()
        for hashed in _hashes(name):
            place = hashed % _BITS
            bits[place >> 3] |= 1 << (place & 7)

    def may_have(self, *name: str) -> bool:
        """False only if the name was never added."""
        bits = self._bytes
        places = [hashed % _BITS for hashed in _hashes(name)] if bits else []
        return bool(bits) and all(bits[at >> 3] >> (at & 7) & 1 for at in places)


class ExpiredNumbers(_Memory):
    """Upper bound, for each name, of the numbers noted for it.

    A name has two slots, which it may share with others. Each slot holds the highest number of all
    its names. A name that was never noted may have a number too, so check a filter first.
    """

    def note(self, name: str, number: int) -> None:
        """Remember that the name reached this number."""
        slots = np.frombuffer(self._to_change(), dtype="<i8")
        for hashed in _hashes((name,)):
            slot = hashed % _SLOTS
            # The number plus 1; 0 in a slot without a name.
            slots[slot] = max(int(slots[slot]), number + 1)

    def highest(self, name: str) -> int:
        """Return an upper bound of this name's numbers; -1 if one of its slots is empty."""
        slots = np.frombuffer(self._bytes, dtype="<i8")
        hashes = _hashes((name,)) if len(slots) else ()
        return min((int(slots[hashed % _SLOTS]) for hashed in hashes), default=0) - 1


def _hashes(name: tuple[str, ...]) -> tuple[int, int]:
    hashed = blake2b("\0".join(name).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed[:_HASH_BYTES]), int.from_bytes(hashed[_HASH_BYTES:])
