"""The checksums of pieces combine to the checksum of the joined bytes."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.pipeline.source.checksums import crc_of_joined


def joined(pieces: list[bytes]) -> int:
    crcs = np.array([crc32(piece) for piece in pieces], dtype=np.int64)
    return crc_of_joined(crcs, np.array([len(piece) for piece in pieces], dtype=np.int32))


@given(st.lists(st.binary(max_size=300), min_size=1))
def test_pieces_have_the_checksum_of_their_bytes(pieces: list[bytes]) -> None:
    assert joined(pieces) == crc32(b"".join(pieces))


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 3 * 65_536, 20_000_001])
def test_long_pieces_do_too(size: int) -> None:
    pieces = [b"a", bytes(size), b"b" * size, b"", b"c"]
    assert joined(pieces) == crc32(b"".join(pieces))


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1), st.data())
def test_one_bit_changes_it(pieces: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(b"".join(pieces))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert joined(pieces) != crc32(whole)
