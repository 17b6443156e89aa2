"""A frame is taken only whole, only in its place, and only by the store that wrote it."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.store.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    MAGIC,
    Frame,
    encode_frame,
    read_frame,
    records_of,
    stated_head,
)
from escrowmq.transaction.records import (
    NEVER,
    Asked,
    NamedQueue,
    Placed,
    Record,
    Stored,
)

SEED = 0xC0FFEE
AT = 5_000
TIME = 1_700_000_000_123
MESSAGES = [b"first message", b"second"]
RECORDS: tuple[Record, ...] = (
    NamedQueue(0, "orders", 3),
    Stored([7, 8], Placed([0, 0], [13, 6], [1, 2], [0, 0], [[9], []])),
)


def framed(
    messages: list[bytes] | None = None, records: tuple[Record, ...] = RECORDS, at: int = AT
) -> bytes:
    content = MESSAGES if messages is None else messages
    return bytes(encode_frame(content, records, at, TIME, at - 100, SEED))


FRAME = framed()


def test_a_whole_frame_is_read_as_it_was_written() -> None:
    frame = read_frame(FRAME, 0, AT, SEED)
    assert frame == Frame(AT, len(FRAME), HEAD_BYTES + 19, TIME, AT - 100)
    assert frame.end == AT + len(FRAME)
    assert FRAME[frame.messages - AT : frame.records_at] == b"first messagesecond"
    assert records_of(FRAME, 0, frame) == list(RECORDS)


def test_the_bytes_of_a_frame_are_these() -> None:
    """The format is a promise: a change here needs a new version."""
    records = b"\x91\x95\x08\x05\x02\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xa1c"
    head = struct.pack("<4sHHIIQQQ", b"EMQF", 1, 0, 44 + 2 + 16, 46, AT, TIME, 4_900)
    checksum = crc32(b"hi" + records, crc32(head, SEED))
    whole = head + struct.pack("<I", checksum) + b"hi" + records
    assert framed([b"hi"], (Asked(5, 2, NEVER, "c"),)) == whole


def test_a_frame_may_hold_records_only() -> None:
    data = framed([], (NamedQueue(0, "t", 0),))
    frame = read_frame(data, 0, AT, SEED)
    assert frame is not None
    assert frame.records_at == HEAD_BYTES
    assert records_of(data, 0, frame) == [NamedQueue(0, "t", 0)]


def test_a_frame_cut_at_any_byte_is_refused() -> None:
    for size in range(len(FRAME)):
        assert read_frame(FRAME[:size], 0, AT, SEED) is None, size


def test_a_frame_torn_at_any_byte_with_zeros_after_it_is_refused() -> None:
    for size in range(len(FRAME)):
        torn = FRAME[:size].ljust(len(FRAME), b"\0")
        assert torn == FRAME or read_frame(torn, 0, AT, SEED) is None, size


def test_a_frame_with_any_bit_flipped_is_refused() -> None:
    for place in range(len(FRAME)):
        for bit in range(8):
            damaged = bytearray(FRAME)
            damaged[place] ^= 1 << bit
            assert read_frame(damaged, 0, AT, SEED) is None, (place, bit)


def test_what_follows_a_frame_does_not_matter() -> None:
    frame = read_frame(FRAME, 0, AT, SEED)
    for rest in (b"\0", b"garbage" * 10, FRAME, FRAME[:50]):
        assert read_frame(FRAME + rest, 0, AT, SEED) == frame


def test_frames_follow_each_other() -> None:
    second_at = AT + len(FRAME)
    data = FRAME + framed([b"x"], (), second_at)
    second = read_frame(data, len(FRAME), second_at, SEED)
    assert second is not None
    assert second.log_offset == second_at
    assert records_of(data, len(FRAME), second) == []


def test_a_frame_is_refused_at_any_other_log_offset() -> None:
    for wrong in (0, AT - 1, AT + 1, AT + len(FRAME), 2**60):
        assert read_frame(FRAME, 0, wrong, SEED) is None


def test_a_frame_of_another_store_is_refused() -> None:
    for seed in (0, SEED + 1, SEED ^ 0x8000_0000):
        assert read_frame(FRAME, 0, AT, seed) is None


def test_a_frame_that_a_producer_hides_in_a_body_is_refused() -> None:
    """The producer knows everything but the seed: even the log offset that it guessed is right."""
    hidden_at = AT + HEAD_BYTES
    hidden = bytes(encode_frame([b"evil"], RECORDS, hidden_at, TIME, 0, 0))
    data = framed([hidden])
    assert data[HEAD_BYTES:].startswith(MAGIC)
    assert read_frame(data, HEAD_BYTES, hidden_at, SEED) is None
    assert read_frame(data, 0, AT, SEED) is not None


def test_a_frame_that_says_it_knew_the_future_flushed_is_refused() -> None:
    """``flushed`` decides between torn and damaged, so it must not lie."""
    data = bytes(encode_frame(MESSAGES, RECORDS, AT, TIME, AT + 1, SEED))
    assert read_frame(data, 0, AT, SEED) is None
    exact = bytes(encode_frame(MESSAGES, RECORDS, AT, TIME, AT, SEED))
    assert read_frame(exact, 0, AT, SEED) is not None


@pytest.mark.parametrize(
    ("length", "records_at"),
    [
        (43, 43),  # shorter than a head
        (60, 43),  # records in the head
        (60, 61),  # records after the end
        (2**32 - 1, 44),  # longer than there are bytes
    ],
)
def test_sizes_that_do_not_fit_are_refused_though_their_checksum_is_right(
    length: int, records_at: int
) -> None:
    body = bytes(100)
    head = struct.pack("<4sHHIIQQQ", b"EMQF", 1, 0, length, records_at, AT, TIME, 0)
    checksum = crc32(body[: max(length - HEAD_BYTES, 0)], crc32(head, SEED))
    data = head + struct.pack("<I", checksum) + body
    assert read_frame(data, 0, AT, SEED) is None


@given(st.binary(max_size=200))
def test_garbage_is_never_a_frame(data: bytes) -> None:
    assert read_frame(data, 0, AT, SEED) is None
    assert read_frame(MAGIC + data, 0, AT, SEED) is None


@given(
    st.lists(st.binary(max_size=40), max_size=4),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**32 - 1),
)
def test_any_frame_is_read_back(messages: list[bytes], at: int, seed: int) -> None:
    data = encode_frame(messages, RECORDS, at, TIME, at, seed)
    frame = read_frame(data, 0, at, seed)
    assert frame is not None
    assert data[HEAD_BYTES : frame.records_at] == b"".join(messages)
    assert records_of(data, 0, frame) == list(RECORDS)


# What bytes say that may be a frame: for those who must know how much to read.


def test_a_head_states_version_and_sizes_without_being_checked() -> None:
    data = bytearray(FRAME[:HEAD_BYTES])
    data[4] = 9
    head = stated_head(b"??" + bytes(data), 2)
    assert head is not None
    assert (head.version, head.length, head.records_at) == (9, len(FRAME), HEAD_BYTES + 19)


def test_what_cannot_be_a_head_states_nothing() -> None:
    assert stated_head(FRAME[: HEAD_BYTES - 1]) is None
    assert stated_head(b"EMQG" + FRAME[4:]) is None
    for length, records_at in ((43, 43), (60, 43), (60, 61), (FRAME_BYTES_MAX + 1, 44)):
        head = struct.pack("<4sHHII", b"EMQF", 1, 0, length, records_at).ljust(HEAD_BYTES, b"\0")
        assert stated_head(head) is None
