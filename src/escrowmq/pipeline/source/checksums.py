"""The checksum of many consecutive pieces, computed from the checksum of each.

A CRC-32 is a polynomial of 32 bits with the lowest power in the highest bit. The CRC of two pieces
is the CRC of the first, times x to the power of the number of bits in the second, plus the CRC of
the second. So the bytes of a whole page are checksummed in one pass, and the result is compared
with the combination of the pieces' own checksums. A damaged piece changes the total as surely as it
changes its own checksum.
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
    """The checksum of pieces with these checksums and sizes, up to 4 GiB together."""
    after = int(sizes.sum()) - np.cumsum(sizes, dtype=np.int64)
    # The pieces are consecutive, so pieces with the same high bits are adjacent.
    high, low = after >> _BITS, after & _LOW_MASK
    near, far = _powers()
    products = _times(crcs.astype(np.uint32), near[low])
    firsts = np.append(0, np.flatnonzero(high[1:] != high[:-1]) + 1)
    sums = np.bitwise_xor.reduceat(products, firsts)
    return int(np.bitwise_xor.reduce(_times(sums, far[high[firsts]])))


def _times(ones: Polynomials, others: Polynomials) -> Polynomials:
    """The products of these polynomials, modulo the divisor."""
    products = np.zeros_like(ones)
    others = others.copy()
    zero, one = np.uint32(0), np.uint32(1)
    for bit in range(31, -1, -1):
        products ^= (zero - (ones >> np.uint32(bit) & one)) & others
        others = others >> one ^ (zero - (others & one)) & _DIVISOR
    return products


@cache
def _powers() -> tuple[Polynomials, Polynomials]:
    """The factors for a number of trailing bytes, and for a number of trailing 64 KiB blocks."""
    near = _each_power(_TO_THE_EIGHTH)
    return near, _each_power(_times(near[-1:], near[1:2])[0])


def _each_power(base: np.uint32) -> Polynomials:
    """The powers of `base`, starting with 1."""
    powers, step = np.array([_ONE]), np.array([base])
    while len(powers) <= _LOW_MASK:
        powers = np.concatenate((powers, _times(powers, np.repeat(step, len(powers)))))
        step = _times(step, step)
    return powers
