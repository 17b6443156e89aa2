"""A frame is accepted only whole, only in its place, and only by the store that wrote it."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import StoreUnusable
from escrowmq.protocol.message.stored_message import encode_many, record_crc
from escrowmq.store.log.frames import (
    FRAME_BYTES_MAX,
    HEAD_BYTES,
    MAGIC,
    close_frame,
    open_frame,
    read_frame,
    stated_head,
    whole_frame,
)
from escrowmq.transaction.records import NEVER, Asked, NamedQueue, Placed, Record, Stored
from tests.unit.store.helpers import HOST, message

SEED = 0xC0FFEE
AT = 5_000
TIME = 1_700_000_000_123


def closed(pieces: list[bytes], records: tuple[Record, ...], at: int = AT, **place: int) -> bytes:
    frame = open_frame(pieces)
    where = (at, TIME, place.get("flushed", at))
    close_frame(frame, records, where, place.get("seed", SEED))
    return bytes(frame)


def framed(
    bodies: list[bytes], at: int = AT, seed: int = SEED
) -> tuple[bytes, tuple[Record, ...], bytes]:
    """A frame with a name and messages; its records; the messages' bytes."""
    messages = [message(body, keys="k", tags="t") for body in bodies]
    pieces, sizes, crcs, _ = encode_many(messages, range(len(bodies)), (at + HEAD_BYTES, 1), HOST)
    placed = Placed([0] * len(bodies), sizes, crcs, [0] * len(bodies))
    records = (NamedQueue(0, "orders", 3), Stored(list(range(len(bodies))), placed))
    return closed(pieces, records, at, seed=seed), records, b"".join(pieces)


FRAME, RECORDS, MESSAGES = framed([b"first body", b"second"])


def is_refused(data: bytes | bytearray, at: int = AT, seed: int = SEED) -> bool:
    return read_frame(data, 0, at, seed) is None


def test_a_frame_made_in_one_step_is_the_same() -> None:
    for pieces, records in (([MESSAGES], RECORDS), ([], (Asked(1, 2, 3, "c"),))):
        size = sum(map(len, pieces))
        assert whole_frame(pieces, size, records, (AT, TIME, AT), SEED) == closed(pieces, records)


def test_a_whole_frame_is_read_as_it_was_written() -> None:
    frame = read_frame(FRAME, 0, AT, SEED)
    assert frame is not None
    assert (frame.log_offset, frame.length, frame.end) == (AT, len(FRAME), AT + len(FRAME))
    assert (frame.stored_at_ms, frame.flushed) == (TIME, AT)
    assert FRAME[frame.messages - AT : frame.records_at] == MESSAGES
    assert frame.records == list(RECORDS)


def test_the_bytes_of_a_frame_are_these() -> None:
    """The format is a promise: a change here needs a new version."""
    records = b"\x91\x95\x08\x05\x02\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xa1c"
    head = struct.pack("<4sHHIIQQQ", b"EMQF", 1, 0, 44 + 16, 44, AT, TIME, 4_900)
    checksum = crc32(records, crc32(head, SEED))
    whole = head + struct.pack("<I", checksum) + records
    assert closed([], (Asked(5, 2, NEVER, "c"),), flushed=4_900) == whole


def test_the_records_vouch_for_the_messages() -> None:
    stored = RECORDS[1]
    assert isinstance(stored, Stored)
    first = stored.placed.sizes[0]
    assert stored.placed.crcs == [record_crc(MESSAGES[:first]), record_crc(MESSAGES[first:])]


def test_a_frame_may_hold_records_only() -> None:
    frame = read_frame(closed([], (NamedQueue(0, "t", 0),)), 0, AT, SEED)
    assert frame is not None
    assert frame.records_at == HEAD_BYTES
    assert frame.records == [NamedQueue(0, "t", 0)]


def test_a_frame_cut_at_any_byte_is_refused() -> None:
    for size in range(len(FRAME)):
        assert is_refused(FRAME[:size]), size


def test_a_frame_torn_at_any_byte_with_zeros_around_it_is_refused() -> None:
    for size in range(len(FRAME)):
        for torn in (
            FRAME[:size].ljust(len(FRAME), b"\0"),
            FRAME[size:].rjust(len(FRAME), b"\0"),
        ):
            assert torn == FRAME or is_refused(torn), size


def test_a_frame_with_any_bit_flipped_is_refused() -> None:
    for place in range(len(FRAME)):
        for bit in range(8):
            damaged = bytearray(FRAME)
            damaged[place] ^= 1 << bit
            assert is_refused(damaged), (place, bit)


def test_bytes_after_a_frame_do_not_matter() -> None:
    for rest in (b"\0", b"garbage" * 10, FRAME, FRAME[:50]):
        assert read_frame(FRAME + rest, 0, AT, SEED) == read_frame(FRAME, 0, AT, SEED)


def test_frames_follow_each_other() -> None:
    second_at = AT + len(FRAME)
    data = FRAME + framed([b"x"], second_at)[0]
    second = read_frame(data, len(FRAME), second_at, SEED)
    assert second is not None
    assert second.log_offset == second_at


def test_a_frame_is_refused_at_any_other_log_offset() -> None:
    for wrong in (0, AT - 1, AT + 1, AT + len(FRAME), 2**60):
        assert is_refused(FRAME, wrong)


def test_a_frame_of_another_store_is_refused() -> None:
    for seed in (0, SEED + 1, SEED ^ 0x8000_0000):
        assert is_refused(FRAME, seed=seed)


def test_a_frame_that_a_producer_hides_in_a_body_is_refused() -> None:
    """The producer knows everything but the seed; it even guessed the right log offset."""
    body_at = framed([b"?" * 100])[0].index(b"?" * 100)
    hidden, _, _ = framed([b"evil"], AT + body_at, seed=0)
    data, _, _ = framed([hidden])
    assert data[body_at:].startswith(MAGIC)
    assert read_frame(data, body_at, AT + body_at, 0) is not None
    assert read_frame(data, body_at, AT + body_at, SEED) is None
    assert read_frame(data, 0, AT, SEED) is not None


def test_messages_that_no_record_vouches_for_are_refused() -> None:
    assert is_refused(closed([MESSAGES], ()))
    assert is_refused(closed([MESSAGES, b"more"], RECORDS))
    assert is_refused(closed([MESSAGES[:-1]], RECORDS))
    assert is_refused(closed([b"not a message at all"], RECORDS))
    assert not is_refused(closed([MESSAGES], RECORDS))


def test_a_frame_that_says_it_knew_the_future_flushed_is_refused() -> None:
    """``flushed`` decides between torn and damaged, so it must be right."""
    assert is_refused(closed([], (), flushed=AT + 1))
    assert not is_refused(closed([], (), flushed=AT))


def test_records_of_a_later_version_are_refused_not_cut() -> None:
    """The checksum is right, so these bytes were written as they are."""
    for records in (b"\x91\x92\xcc\xc8\x01", b"\x91\x91\x08", b"\xc1"):
        head = struct.pack("<4sHHIIQQQ", b"EMQF", 1, 0, 44 + len(records), 44, AT, TIME, 0)
        data = head + struct.pack("<I", crc32(records, crc32(head, SEED))) + records
        with pytest.raises(StoreUnusable) as refused:
            read_frame(data, 0, AT, SEED)
        assert refused.value.code == "records_unknown"
        assert refused.value.fields["log_offset"] == AT


@pytest.mark.parametrize(
    ("length", "records_at"),
    [
        (43, 43),  # shorter than a head
        (60, 43),  # records inside the head
        (60, 61),  # records after the end
        (2**32 - 1, 44),  # longer than the data
    ],
)
def test_sizes_that_do_not_fit_are_refused_though_their_checksum_is_right(
    length: int, records_at: int
) -> None:
    body = bytes(100)
    head = struct.pack("<4sHHIIQQQ", b"EMQF", 1, 0, length, records_at, AT, TIME, 0)
    records = (head + bytes(4) + body)[records_at:length]
    data = head + struct.pack("<I", crc32(records, crc32(head, SEED))) + body
    assert is_refused(data)


@given(st.binary(max_size=200))
def test_garbage_is_never_a_frame(data: bytes) -> None:
    assert is_refused(data)
    assert is_refused(MAGIC + data)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=4),
    st.integers(0, 2**62),
    st.integers(0, 2**32 - 1),
)
def test_any_frame_is_read_back(bodies: list[bytes], at: int, seed: int) -> None:
    data, records, messages = framed(bodies, at, seed)
    frame = read_frame(data, 0, at, seed)
    assert frame is not None
    assert frame.records == list(records)
    assert data[HEAD_BYTES : frame.records_at] == messages


# Fields of a possible head, for callers that must know how much to read.


def test_a_head_states_version_and_sizes_without_being_checked() -> None:
    data = bytearray(FRAME[:HEAD_BYTES])
    data[4] = 9
    head = stated_head(b"??" + bytes(data), 2)
    assert head is not None
    assert (head.version, head.length) == (9, len(FRAME))
    assert head.records_at == HEAD_BYTES + len(MESSAGES)


def test_bytes_that_cannot_be_a_head_state_no_frame() -> None:
    assert stated_head(FRAME[: HEAD_BYTES - 1]) is None
    assert stated_head(b"EMQG" + FRAME[4:]) is None
    for length, records_at in ((43, 43), (60, 43), (60, 61), (FRAME_BYTES_MAX + 1, 44)):
        head = struct.pack("<4sHHII", b"EMQF", 1, 0, length, records_at).ljust(HEAD_BYTES, b"\0")
        assert stated_head(head) is None
