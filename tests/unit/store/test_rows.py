"""Rows on disk: each has a checksum that proves it intact."""

from __future__ import annotations

import numpy as np
import pytest

from escrowmq.store.disk.rows import (
    QUEUE_ENTRY,
    STATE_ROW,
    SURVIVOR_ROW,
    Rows,
    check_words,
    first_bad,
    sealed,
)

KINDS = pytest.mark.parametrize("kind", [STATE_ROW, SURVIVOR_ROW, QUEUE_ENTRY], ids=len)


def some_rows(kind: np.dtype[np.void], count: int = 3) -> Rows:
    rows = np.zeros(count, dtype=kind)
    for number, name in enumerate(kind.names or (), 1):
        rows[name] = [number * row % 200 for row in range(1, count + 1)]
    return rows


@KINDS
def test_sealed_rows_are_sound(kind: np.dtype[np.void]) -> None:
    rows = np.frombuffer(sealed(some_rows(kind)), dtype=kind)
    assert first_bad(rows) is None


@KINDS
def test_any_flipped_bit_is_seen_and_its_row_named(kind: np.dtype[np.void]) -> None:
    data = sealed(some_rows(kind))
    for place in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            rows = np.frombuffer(damaged, dtype=kind)
            assert first_bad(rows) == place // kind.itemsize, (place, bit)


@KINDS
def test_zeros_that_a_lost_write_left_are_no_row(kind: np.dtype[np.void]) -> None:
    assert first_bad(np.zeros(2, dtype=kind)) == 0
    data = sealed(some_rows(kind, 2)) + bytes(kind.itemsize)
    assert first_bad(np.frombuffer(data, dtype=kind)) == 2


def test_no_rows_are_sound() -> None:
    assert first_bad(np.zeros(0, dtype=STATE_ROW)) is None


def test_swapped_fields_are_seen() -> None:
    rows = np.frombuffer(sealed(some_rows(STATE_ROW)), dtype=STATE_ROW).copy()
    rows["size"], rows["crc"] = rows["crc"].copy(), rows["size"].copy()
    assert first_bad(rows) == 0


def test_the_check_word_is_this() -> None:
    """The format is a promise: a change here needs a new version."""
    rows = np.zeros(1, dtype=QUEUE_ENTRY)
    rows["log_offset"] = 1
    first_odd = 2 * (0x9E3779B1 % 2**31) + 1
    assert check_words(rows).tolist() == [(first_odd + 1) % 2**32]
    assert sealed(rows)[-4:] == ((first_odd + 1) % 2**32).to_bytes(4, "little")
