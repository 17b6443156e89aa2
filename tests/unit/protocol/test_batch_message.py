"""Batches: written, read, and garbled."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.batch_message import BATCH_MESSAGES_MAX, BatchedMessage, decode_batch
from tests.unit.protocol.batches import encode_batch

ONE = bytes.fromhex(
    "00000020"  # 22 + 3 + 7 = 32 bytes
    "00000000"  # magic
    "00000000"  # CRC
    "fffffffe"  # flag
    "00000003 6f6e65"  # body
    "0007 54414753015402"  # properties
)
MESSAGE = (-2, b"one", b"TAGS\x01T\x02")
MESSAGES = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)),
    max_size=5,
)


def test_a_message_is_laid_out_as_rocketmq_does() -> None:
    assert encode_batch([MESSAGE]) == ONE
    assert decode_batch(ONE) == [MESSAGE]


@given(MESSAGES)
def test_written_values_are_read_back(messages: list[BatchedMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


def test_magic_and_crc_are_not_looked_at() -> None:
    assert decode_batch(ONE[:4] + b"\xff" * 8 + ONE[12:]) == [MESSAGE]


def test_a_batch_that_ends_too_early_is_a_violation() -> None:
    two = ONE * 2
    for end in range(1, len(two)):
        if end != len(ONE):
            with pytest.raises(ProtocolViolation) as violation:
                decode_batch(two[:end])
            assert violation.value.code == "batch_malformed"
            assert violation.value.fields["at"] == (0 if end < len(ONE) else len(ONE))


@pytest.mark.parametrize(
    ("at", "size"),
    [
        (0, b"\x00\x00\x00\x00"),
        (0, b"\x00\x00\x00\x1f"),
        (0, b"\x00\x00\x00\x21"),
        (0, b"\xff\xff\xff\xff"),
        (16, b"\x00\x00\x00\x02"),
        (16, b"\xff\xff\xff\xff"),
        (23, b"\x00\x06"),
        (23, b"\xff\xff"),
    ],
)
def test_sizes_that_do_not_add_up_are_a_violation(at: int, size: bytes) -> None:
    data = ONE[:at] + size + ONE[at + len(size) :]
    with pytest.raises(ProtocolViolation, match="batch_malformed"):
        decode_batch(data + ONE)


def test_properties_beyond_their_limit_are_not_read() -> None:
    longest = (0, b"", b"x" * 32_767)
    assert decode_batch(encode_batch([longest])) == [longest]
    with pytest.raises(ProtocolViolation, match="batch_malformed"):
        decode_batch(encode_batch([(0, b"", b"x" * 32_768)]))


def test_a_batch_has_a_limit() -> None:
    empty = encode_batch([(0, b"", b"")])
    assert len(decode_batch(empty * BATCH_MESSAGES_MAX)) == BATCH_MESSAGES_MAX
    with pytest.raises(ProtocolViolation, match="too many messages"):
        decode_batch(empty * (BATCH_MESSAGES_MAX + 1))


@given(st.binary(max_size=100), st.integers(0, 63), st.integers(0, 255))
def test_any_bytes_are_a_batch_or_a_violation(data: bytes, place: int, value: int) -> None:
    changed = bytearray(ONE * 2)
    changed[place] = value
    for batch in (data, bytes(changed)):
        with suppress(ProtocolViolation):
            decode_batch(batch)
