"""The checksum of very many pieces one after the other, from the checksums of each.

A CRC-32 is a polynomial of 32 bits, the lowest power in the highest bit.  That of two pieces is the
first one's, times x to the power of the second one's bits, plus the second one's.  So the bytes of
a whole page are summed up in one go, and compared with what the pieces' own checksums come to:
a piece that is not whole changes the sum as surely as it changes its own checksum.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Polynomials = npt.NDArray[np.uint32]

_DIVISOR = np.uint32(0xEDB88320)
_ONE = np.uint32(1 << 31)
_TO_THE_EIGHTH = np.uint32(1 << 23)
_BITS = 16
_LOW_MASK = (1 << _BITS) - 1


def crc_of_joined(crcs: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> int:
    """The checksum of pieces of these checksums and sizes; up to 4 GiB together."""
    after = int(sizes.sum()) - np.cumsum(sizes, dtype=np.int64)
    # Pieces follow each other, so those that have the same high bits do, too.
    high, low = after >> _BITS, after & _LOW_MASK
    near, far = _powers()
    products = _times(crcs.astype(np.uint32), near[low])
    firsts = np.append(0, np.flatnonzero(high[1:] != high[:-1]) + 1)
    sums = np.bitwise_xor.reduceat(products, firsts)
    return int(np.bitwise_xor.reduce(_times(sums, far[high[firsts]])))


def _times(ones: Polynomials, others: Polynomials) -> Polynomials:
    """The products of these, modulo the divisor."""
    products = np.zeros_like(ones)
    others = others.copy()
    zero, one = np.uint32(0), np.uint32(1)
    for bit in range(31, -1, -1):
        products ^= (zero - (ones >> np.uint32(bit) & one)) & others
        others = others >> one ^ (zero - (others & one)) & _DIVISOR
    return products


@cache
def _powers() -> tuple[Polynomials, Polynomials]:
    """What so many bytes after a piece multiply its checksum with: by the byte, and by 64 KiB."""
    near = _each_power(_TO_THE_EIGHTH)
    return near, _each_power(_times(near[-1:], near[1:2])[0])


def _each_power(base: np.uint32) -> Polynomials:
    """The powers of this, from the one that is 1."""
    powers, step = np.array([_ONE]), np.array([base])
    while len(powers) <= _LOW_MASK:
        powers = np.concatenate((powers, _times(powers, np.repeat(step, len(powers)))))
        step = _times(step, step)
    return powers
