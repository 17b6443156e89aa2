"""The layout of stored messages: written, read, skimmed, and garbled."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.model.message import SentMessage
from escrowmq.protocol.message import stored_message as module
from escrowmq.protocol.message.limits import CACHED_TOPICS_MAX, validate
from escrowmq.protocol.message.message_views import half_topic_view, patch_committed
from escrowmq.protocol.message.stored_message import (
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_IPV6,
    SYS_COMMITTED,
    SYS_COMPRESSED,
    SYS_PREPARED,
    SYS_ROLLED_BACK,
    SYS_STORE_IPV6,
    SYS_TRANSACTION_MASK,
    StoredMessage,
    decode,
    decode_many,
    encode,
    encoded_size,
    skim,
)
from tests.unit.protocol.examples import (
    GOLDEN_IPV4_V1,
    GOLDEN_IPV6_V2,
    HOST_PAIRS,
    IPV4,
    IPV6,
    ORDER,
    RETRY,
    RETRY_TOPIC,
    message,
    record_of,
)

EXTREMES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=127)
MESSAGES = st.builds(
    SentMessage,
    topic=st.one_of(NAMES, NAMES.map("%RETRY%".__add__), NAMES.map(("%DLQ%" + "d" * 123).__add__)),
    queue_id=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=300),
    properties=st.binary(max_size=300),
    flag=INT32,
    sys_flag=INT32,
    born_at_ms=INT64,
    born_host=HOSTS,
    reconsume_times=INT32,
)
TRANSACTION_BITS = st.sampled_from([0, SYS_PREPARED, SYS_COMMITTED, SYS_ROLLED_BACK])


def write_again(stored: StoredMessage) -> bytes:
    again = SentMessage(
        topic=stored.topic,
        queue_id=stored.queue_id,
        body=stored.body,
        properties=stored.properties,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        born_at_ms=stored.born_at_ms,
        born_host=stored.born_host,
        reconsume_times=stored.reconsume_times,
    )
    return encode(
        again,
        stored.queue_offset,
        stored.log_offset,
        stored.stored_at_ms,
        stored.store_host,
        stored.sys_flag & SYS_TRANSACTION_MASK,
        stored.prepared_offset,
    )


def read_or_refuse(data: bytes) -> StoredMessage | None:
    """Return the message, or None if refused; another error or a disagreement fails the test."""
    try:
        stored = decode(data, check_body=False)
    except ProtocolViolation as violation:
        code, at = violation.code, violation.fields["at"]
    else:
        assert_skimmed_alike(data, stored)
        return stored
    assert code == "stored_message_malformed"
    assert isinstance(at, int)
    assert 0 <= at <= len(data)
    return None


def assert_skimmed_alike(data: bytes, stored: StoredMessage) -> None:
    assert stored.size == len(data)
    assert skim(data) == (
        stored.size,
        stored.queue_id,
        stored.queue_offset,
        stored.sys_flag,
        stored.topic,
        stored.properties,
    )


# Written and read.


def test_a_v1_message_between_ipv4_hosts_has_these_bytes() -> None:
    stored_at_ms = 0x018BCFE569C8
    assert encode(ORDER, 12, 4096, stored_at_ms, IPV4, SYS_PREPARED, 0x800) == GOLDEN_IPV4_V1


def test_a_v2_message_between_ipv6_hosts_has_these_bytes() -> None:
    assert encode(RETRY, 1, 2, 3, IPV6) == GOLDEN_IPV6_V2


def test_every_field_is_read() -> None:
    assert decode(GOLDEN_IPV4_V1) == StoredMessage(
        size=116,
        magic=MAGIC_V1,
        body_crc=0x4BF43926,
        queue_id=3,
        flag=-2,
        queue_offset=12,
        log_offset=4096,
        sys_flag=SYS_COMPRESSED | SYS_PREPARED,
        born_at_ms=0x018BCFE5687B,
        born_host=ORDER.born_host,
        stored_at_ms=0x018BCFE569C8,
        store_host=IPV4,
        reconsume_times=5,
        prepared_offset=0x800,
        body=b"123456789",
        topic="orders",
        properties=b"TAGS\x01TagA\x02",
    )
    assert decode(GOLDEN_IPV6_V2) == StoredMessage(
        size=244,
        magic=MAGIC_V2,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=1,
        log_offset=2,
        sys_flag=0x0300 | SYS_BORN_IPV6 | SYS_STORE_IPV6,
        born_at_ms=1,
        born_host=IPV6,
        stored_at_ms=3,
        store_host=IPV6,
        reconsume_times=0,
        prepared_offset=0,
        body=b"",
        topic=RETRY_TOPIC,
        properties=b"",
    )


@given(MESSAGES, INT64, INT64, INT64, HOSTS, TRANSACTION_BITS, INT64)
def test_written_values_are_read_back(  # noqa: PLR0917 - as many as encode takes.
    sent: SentMessage,
    queue_offset: int,
    log_offset: int,
    stored_at_ms: int,
    store_host: bytes,
    transaction_bits: int,
    prepared_offset: int,
) -> None:
    validate(sent)
    record = encode(
        sent, queue_offset, log_offset, stored_at_ms, store_host, transaction_bits, prepared_offset
    )
    assert len(record) == encoded_size(sent, len(store_host))
    stored = decode(memoryview(record))
    assert (stored.queue_offset, stored.log_offset) == (queue_offset, log_offset)
    assert (stored.stored_at_ms, stored.store_host) == (stored_at_ms, store_host)
    assert stored.prepared_offset == prepared_offset
    assert stored.sys_flag & SYS_TRANSACTION_MASK == transaction_bits
    assert stored.body_crc == zlib.crc32(sent.body) & 0x7FFFFFFF
    assert stored.magic == (MAGIC_V1 if len(sent.topic) <= 127 else MAGIC_V2)
    for field in ("topic", "queue_id", "body", "properties", "flag", "born_at_ms", "born_host"):
        assert getattr(stored, field) == getattr(sent, field)
    assert stored.reconsume_times == sent.reconsume_times
    assert write_again(stored) == record


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_the_flag_tells_the_hosts_as_they_are_whatever_the_sender_said(
    born_host: bytes, store_host: bytes
) -> None:
    for said in (0, SYS_BORN_IPV6, SYS_STORE_IPV6, SYS_BORN_IPV6 | SYS_STORE_IPV6):
        stored = decode(encode(message(born_host=born_host, sys_flag=said), 0, 0, 0, store_host))
        assert (stored.born_host, stored.store_host) == (born_host, store_host)
        assert bool(stored.sys_flag & SYS_BORN_IPV6) == (born_host == IPV6)
        assert bool(stored.sys_flag & SYS_STORE_IPV6) == (store_host == IPV6)


@pytest.mark.parametrize("said", [0, SYS_PREPARED, SYS_COMMITTED, SYS_ROLLED_BACK])
def test_the_transaction_bits_are_the_callers_and_not_the_senders(said: int) -> None:
    sent = message(sys_flag=SYS_COMPRESSED | said)
    plain = decode(encode(sent, 0, 0, 0, IPV4))
    assert plain.sys_flag == SYS_COMPRESSED
    half = decode(encode(sent, 0, 0, 0, IPV4, SYS_PREPARED))
    assert half.sys_flag == SYS_COMPRESSED | SYS_PREPARED


def test_v2_is_for_topics_that_v1_cannot_hold() -> None:
    assert decode(encode(message(topic="t" * 127), 0, 0, 0, IPV4)).magic == MAGIC_V1
    assert decode(encode(message(topic="t" * 128), 0, 0, 0, IPV4)).magic == MAGIC_V2


def test_the_size_is_known_before_a_topic_was_ever_written() -> None:
    first = message(topic="never-written-before")
    assert encoded_size(first, 20) == len(encode(first, 0, 0, 0, IPV6))


def test_messages_that_follow_each_other_are_read_in_order() -> None:
    assert decode_many(b"") == []
    both = decode_many(memoryview(GOLDEN_IPV4_V1 + GOLDEN_IPV6_V2))
    assert both == [decode(GOLDEN_IPV4_V1), decode(GOLDEN_IPV6_V2)]


def test_a_place_in_the_second_message_counts_from_the_start_of_the_first() -> None:
    damaged = bytearray(GOLDEN_IPV4_V1 * 2)
    damaged[116 + 92] ^= 1
    with pytest.raises(ProtocolViolation) as violation:
        decode_many(bytes(damaged))
    assert violation.value.fields["at"] == 116 + 88


# Skimmed.


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_message_is_skimmed_where_it_stands(
    born_host: bytes, store_host: bytes, kind: type[bytes]
) -> None:
    record = record_of(born_host, store_host)
    skimmed = skim(kind(b"before" + record + b"after"), 6)
    assert skimmed == (
        len(record),
        3,
        12,
        decode(record).sys_flag,
        "orders",
        b"TAGS\x01TagA\x02",
    )
    assert type(skimmed[-1]) is bytes


def test_a_damaged_body_is_seen_by_those_who_look_at_it() -> None:
    damaged = GOLDEN_IPV4_V1.replace(b"123456789", b"123456780")
    with pytest.raises(ProtocolViolation) as violation:
        decode(damaged)
    assert violation.value.fields == {"at": 88, "body_crc": 0x4BF43926}
    assert decode(damaged, check_body=False).body == b"123456780"
    assert skim(damaged) == skim(GOLDEN_IPV4_V1)


# Garbled.


@pytest.mark.parametrize("record", [GOLDEN_IPV4_V1, GOLDEN_IPV6_V2])
def test_a_message_cut_anywhere_is_a_violation(record: bytes) -> None:
    for end in range(len(record)):
        for read in (decode, skim, half_topic_view_of):
            with pytest.raises(ProtocolViolation, match="truncated"):
                read(record[:end])
        with pytest.raises(ProtocolViolation, match="truncated"):
            decode_many(record + record[:end] if end else record[:1])


def half_topic_view_of(record: bytes) -> bytes:
    return half_topic_view(record, 0)


@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_head_cut_anywhere_cannot_be_shown_as_committed(
    born_host: bytes, store_host: bytes
) -> None:
    for end in range(68 + len(born_host) + len(store_host)):
        with pytest.raises(ProtocolViolation, match="truncated"):
            patch_committed(record_of(born_host, store_host)[:end], 0, 0, 0)


@pytest.mark.parametrize("rest", [b"\0", GOLDEN_IPV4_V1])
def test_bytes_after_a_message_are_a_violation(rest: bytes) -> None:
    for read in (decode, half_topic_view_of):
        with pytest.raises(ProtocolViolation) as violation:
            read(GOLDEN_IPV4_V1 + rest)
        assert violation.value.fields == {"at": 116, "bytes": len(rest)}


@pytest.mark.parametrize("record", [GOLDEN_IPV4_V1, GOLDEN_IPV6_V2, record_of(IPV6, IPV4)])
def test_a_message_with_any_one_byte_changed_is_read_or_refused(record: bytes) -> None:
    for at in range(len(record)):
        for value in {*EXTREMES, *(record[at] ^ 1 << bit for bit in range(8))}:
            stored = read_or_refuse(record[:at] + bytes((value,)) + record[at + 1 :])
            if at < 8 and value != record[at]:
                assert stored is None, "a wrong size or magic was believed"


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read_or_refuse(data)


@given(
    st.sampled_from([MAGIC_V1, MAGIC_V2]),
    st.sampled_from([0, SYS_BORN_IPV6, SYS_STORE_IPV6, SYS_BORN_IPV6 | SYS_STORE_IPV6]),
    st.tuples(st.binary(max_size=8), st.binary(max_size=8), st.binary(max_size=8)),
    st.tuples(*[st.sampled_from([0, 0, 0, 0, 1, -1])] * 3),
)
def test_sizes_that_are_one_off_are_never_believed(
    magic: int, ipv6_bits: int, parts: tuple[bytes, ...], off_by: tuple[int, ...]
) -> None:
    formats = (">I", ">B" if magic == MAGIC_V1 else ">H", ">H")
    tail = b"".join(
        struct.pack(size_format, max(0, len(part) + off)) + part
        for size_format, part, off in zip(formats, parts, off_by, strict=True)
    )
    hosts_bytes = 16 + 12 * ipv6_bits.bit_count()
    size = 68 + hosts_bytes + len(tail)
    data = struct.pack(">II28xI", size, magic, ipv6_bits) + bytes(hosts_bytes + 28) + tail
    stored = read_or_refuse(data)
    if stored is not None and magic == MAGIC_V1:
        rewritten = write_again(stored)
        assert (rewritten[:8], rewritten[12:]) == (data[:8], data[12:]), "all but the CRC"


@pytest.mark.parametrize(
    ("tail", "what"),
    [
        (b"\x00" + b"\x00\x00", "topic size out of range"),
        (b"\x80" + b"t" * 128 + b"\x00\x00", "topic size out of range"),  # Negative to Java.
        (b"\x01\xff" + b"\x00\x00", "topic is not UTF-8"),
        (b"\x01t" + b"\x80\x00" + b"p" * 32_768, "properties do not fit"),  # Negative to Java, too.
        (b"\x01t" + b"\x00\x02p", "properties do not fit"),
        (b"\x01t" + b"\x00\x00p", "properties do not fit"),
        (b"\x02t", "passes its end"),
        (b"\x01t\x00", "passes its end"),
        (b"", "passes its end"),
    ],
)
def test_parts_that_do_not_fit_are_a_violation(tail: bytes, what: str) -> None:
    head = GOLDEN_IPV4_V1[4:97]
    for read in (decode, skim):
        with pytest.raises(ProtocolViolation, match=what) as violation:
            read(struct.pack(">I", 97 + len(tail)) + head + tail)
        assert violation.value.code == "stored_message_malformed"


def test_a_v2_topic_of_negative_size_is_a_violation() -> None:
    head = GOLDEN_IPV6_V2[4:112]
    tail = b"\x80\x00" + b"t" * 32_768 + b"\x00\x00"
    with pytest.raises(ProtocolViolation, match="topic size out of range"):
        skim(struct.pack(">I", 112 + len(tail)) + head + tail)


def test_the_blank_at_the_end_of_a_log_file_is_no_message() -> None:
    blank = bytearray(GOLDEN_IPV4_V1)
    blank[4:8] = bytes.fromhex("cbd43194")
    with pytest.raises(ProtocolViolation) as violation:
        decode(bytes(blank))
    assert violation.value.fields == {"at": 4, "magic": 0xCBD43194}


# Remembered.


def test_the_caches_of_topics_are_bounded() -> None:
    for number in range(CACHED_TOPICS_MAX + 1):
        one_of_many = message(topic=f"topic-{number}")
        assert skim(encode(one_of_many, 0, 0, 0, IPV4))[4] == one_of_many.topic
    for cache in (module._topic_fields, module._topic_names):
        assert 0 < len(cache) <= CACHED_TOPICS_MAX
    assert decode(GOLDEN_IPV4_V1).topic == "orders"


def test_a_topic_longer_than_ours_may_be_is_read_but_not_remembered() -> None:
    record = encode(message(topic="t" * 30_000), 0, 0, 0, IPV4)
    assert decode(record).topic == "t" * 30_000
    assert max(map(len, module._topic_names), default=0) <= 257
