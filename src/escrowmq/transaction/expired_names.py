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


class ExpiredNames:
    """Bloom filter of names, each made of one or more texts.

    With 10,000 names in it, one other name in 2,500 is a false positive; with 100,000, one in 30.
    """

    def __init__(self) -> None:
        #: Empty until the first name is added: most stores never expire anything.
        self._bits = bytearray()
        self._saved: bytes | None = b""

    def add(self, *name: str) -> None:
        """Add a name; a known one changes nothing."""
        if not self._bits:
            self._bits = bytearray(BYTES)
        for hashed in _hashes(name):
            place = hashed % _BITS
            self._bits[place >> 3] |= 1 << (place & 7)
        self._saved = None

    def may_have(self, *name: str) -> bool:
        """False only if the name was never added."""
        bits = self._bits
        places = [hashed % _BITS for hashed in _hashes(name)] if bits else []
        return bool(bits) and all(bits[at >> 3] >> (at & 7) & 1 for at in places)

    def saved(self) -> bytes:
        """Return the content for a checkpoint."""
        if self._saved is None:
            self._saved = bytes(self._bits)
        return self._saved

    def load(self, saved: bytes) -> None:
        """Load the content of a checkpoint."""
        self._bits, self._saved = bytearray(saved), saved


class ExpiredNumbers:
    """Upper bound, for each name, of the numbers noted for it.

    A name has two slots, which it may share with others. Each slot holds the highest number of all
    its names. A name that was never noted may have a number too, so check a filter first.
    """

    def __init__(self) -> None:
        #: The number plus 1; 0 in a slot without a name.
        self._slots = np.zeros(0, dtype="<i8")
        self._saved: bytes | None = b""

    def note(self, name: str, number: int) -> None:
        """Remember that the name reached this number."""
        if not len(self._slots):
            self._slots = np.zeros(_SLOTS, dtype="<i8")
        for hashed in _hashes((name,)):
            slot = hashed % _SLOTS
            self._slots[slot] = max(int(self._slots[slot]), number + 1)
        self._saved = None

    def highest(self, name: str) -> int:
        """Return an upper bound of this name's numbers; -1 if one of its slots is empty."""
        if not len(self._slots):
            return -1
        return min(int(self._slots[hashed % _SLOTS]) for hashed in _hashes((name,))) - 1

    def saved(self) -> bytes:
        """Return the content for a checkpoint."""
        if self._saved is None:
            self._saved = self._slots.tobytes()
        return self._saved

    def load(self, saved: bytes) -> None:
        """Load the content of a checkpoint."""
        self._slots, self._saved = np.frombuffer(saved, dtype="<i8").copy(), saved


def _hashes(name: tuple[str, ...]) -> tuple[int, int]:
    hashed = blake2b("\0".join(name).encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(hashed[:_HASH_BYTES]), int.from_bytes(hashed[_HASH_BYTES:])
