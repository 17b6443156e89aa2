"""The layout of stored messages: written, read, skimmed, shown, and garbled."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.model.message import Message
from escrowmq.protocol import stored_message as module
from escrowmq.protocol.properties import PROPERTIES_BYTES_MAX
from escrowmq.protocol.stored_message import (
    BODY_BYTES_MAX,
    CACHED_TOPICS_MAX,
    HALF_TOPIC,
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
    half_topic_view,
    patch_committed,
    skim,
    validate,
)

IPV4 = bytes.fromhex("7f000001 00002a9f")
IPV6 = bytes.fromhex("fd00000000000000000000000000beef 00002a9f")
HOST_PAIRS = [(IPV4, IPV4), (IPV6, IPV4), (IPV4, IPV6), (IPV6, IPV6)]

ORDER = Message(
    topic="orders",
    queue_id=3,
    body=b"123456789",
    properties=b"TAGS\x01TagA\x02",
    flag=-2,
    sys_flag=SYS_COMPRESSED,
    born_at_ms=0x018BCFE5687B,
    born_host=bytes.fromhex("c0a80709 0000d431"),
    reconsume_times=5,
)
GOLDEN_IPV4_V1 = bytes.fromhex(
    "00000074"  # 91 + 9 + 6 + 10 = 116 bytes
    "daa320a7"  # v1
    "4bf43926"  # CRC-32 of 123456789 is cbf43926; the highest bit goes
    "00000003"  # queue id
    "fffffffe"  # flag
    "000000000000000c"  # queue offset
    "0000000000001000"  # log offset
    "00000005"  # sys flag: compressed, prepared
    "0000018bcfe5687b"  # born at
    "c0a80709 0000d431"  # born host
    "0000018bcfe569c8"  # stored at
    "7f000001 00002a9f"  # store host
    "00000005"  # reconsume times
    "0000000000000800"  # prepared offset
    "00000009 313233343536373839"  # body
    "06 6f7264657273"  # topic
    "000a 5441475301 5461674102"  # properties
)

RETRY_TOPIC = "%RETRY%" + "g" * 121
RETRY = Message(
    topic=RETRY_TOPIC, queue_id=0, body=b"", born_host=IPV6, sys_flag=0x0300, born_at_ms=1
)
GOLDEN_IPV6_V2 = bytes.fromhex(
    "000000f4"  # 91 + 12 + 12 + 1 + 128 = 244 bytes
    "daa320ab"  # v2
    "00000000"  # CRC-32 of nothing
    "00000000"  # queue id
    "00000000"  # flag
    "0000000000000001"  # queue offset
    "0000000000000002"  # log offset
    "00000330"  # sys flag: compression type 3, both hosts IPv6
    "0000000000000001"  # born at
    "fd00000000000000000000000000beef 00002a9f"  # born host
    "0000000000000003"  # stored at
    "fd00000000000000000000000000beef 00002a9f"  # store host
    "00000000"  # reconsume times
    "0000000000000000"  # prepared offset
    "00000000"  # body
    "0080 25524554525925"  # topic, 128 bytes: %RETRY%
    f"{'67' * 121}"  # and many a g
    "0000"  # properties
)

EXTREMES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=127)
MESSAGES = st.builds(
    Message,
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


def message(**changes: Any) -> Message:  # noqa: ANN401 - any of a message's fields.
    return msgspec.structs.replace(ORDER, **changes)


def record_of(born_host: bytes = IPV4, store_host: bytes = IPV4, topic: str = "orders") -> bytes:
    half = message(born_host=born_host, topic=topic)
    return encode(half, 12, 4096, 1_700_000_000_456, store_host, SYS_PREPARED)


def write_again(stored: StoredMessage) -> bytes:
    again = Message(
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
    """Any other exception fails the test that called this; so does a disagreement."""
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
def test_what_is_written_is_read_back(  # noqa: PLR0913, PLR0917 - as many as encode takes.
    sent: Message,
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
        (b"\x01t" + b"\x80\x00" + b"p" * 32_768, "properties do not fit"),  # Negative, too.
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


# Shown to consumers and to administrators.


@pytest.mark.parametrize("topic", ["orders", RETRY_TOPIC])
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_a_committed_half_differs_in_four_fields_only(
    born_host: bytes, store_host: bytes, topic: str
) -> None:
    record = record_of(born_host, store_host, topic)
    half = decode(record)
    patched = patch_committed(record, 99, 1_700_000_009_999, 4096)
    assert decode(patched) == msgspec.structs.replace(
        half,
        queue_offset=99,
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_COMMITTED,
        stored_at_ms=1_700_000_009_999,
        prepared_offset=4096,
    )
    assert record == record_of(born_host, store_host, topic), "the stored bytes stay as they are"


@pytest.mark.parametrize("topic", ["orders", RETRY_TOPIC])
@pytest.mark.parametrize(("born_host", "store_host"), HOST_PAIRS)
def test_administrators_see_an_undecided_half_on_the_half_topic(
    born_host: bytes, store_host: bytes, topic: str
) -> None:
    record = record_of(born_host, store_host, topic)
    half = decode(record)
    view = half_topic_view(record, 7)
    assert decode(view) == msgspec.structs.replace(
        half,
        size=len(view),
        magic=MAGIC_V1,
        topic=HALF_TOPIC,
        queue_id=0,
        queue_offset=7,
        sys_flag=half.sys_flag & ~SYS_TRANSACTION_MASK,
    )


# Limits.


@pytest.mark.parametrize(
    "within",
    [
        {"topic": "t"},
        {"topic": "t" * 127},
        {"topic": "%RETRY%" + "g" * 248},
        {"topic": "%DLQ%" + "g" * 250},
        {"topic": "a-b_c%d|e9Z"},
        {"body": b""},
        {"body": bytes(BODY_BYTES_MAX)},
        {"properties": bytes(PROPERTIES_BYTES_MAX)},
        {"queue_id": 0},
        {"queue_id": 2**31 - 1},
        {"born_host": IPV4},
        {"born_host": IPV6},
        *({field: -(2**31)} for field in ("flag", "sys_flag", "reconsume_times")),
        *({field: 2**31 - 1} for field in ("flag", "sys_flag", "reconsume_times")),
        {"born_at_ms": -(2**63)},
        {"born_at_ms": 2**63 - 1},
        {"deliver_after_ms": 2**63 - 1},
        {"deliver_at_ms": 2**63 - 1},
    ],
    ids=lambda within: next(iter(within)),
)
def test_a_message_within_the_limits_is_taken_and_can_be_written(within: dict[str, Any]) -> None:
    for _ in range(2):  # The second time its topic is known.
        validate(message(**within))
    encode(message(**within), 0, 0, 0, IPV6)


@pytest.mark.parametrize(
    ("beyond", "code", "facts"),
    [
        ({"topic": ""}, "topic_illegal", {"chars": 0, "chars_max": 127}),
        ({"topic": "t" * 128}, "topic_illegal", {"chars": 128, "chars_max": 127}),
        ({"topic": "%RETRY%" + "g" * 249}, "topic_illegal", {"chars": 256, "chars_max": 255}),
        ({"topic": "%DLQ%" + "g" * 251}, "topic_illegal", {"chars": 256, "chars_max": 255}),
        ({"topic": "RETRY" + "g" * 123}, "topic_illegal", {"chars": 128, "chars_max": 127}),
        ({"topic": "a.b"}, "topic_illegal", {"topic": "a.b"}),
        ({"topic": "a b"}, "topic_illegal", {"topic": "a b"}),
        ({"topic": "orders\n"}, "topic_illegal", {"topic": "orders\n"}),
        ({"topic": "été"}, "topic_illegal", {"topic": "été"}),
        ({"topic": "\u0661"}, "topic_illegal", {"topic": "\u0661"}),  # A digit, but not ours.
        (
            {"body": bytes(4_194_305)},
            "body_too_large",
            {"bytes": 4_194_305, "bytes_max": 4_194_304},
        ),
        (
            {"properties": bytes(32_768)},
            "properties_too_large",
            {"bytes": 32_768, "bytes_max": 32_767},
        ),
        ({"queue_id": -1}, "queue_id_illegal", {"queue_id": -1, "max": 2**31 - 1}),
        ({"queue_id": 2**31}, "queue_id_illegal", {"queue_id": 2**31, "max": 2**31 - 1}),
        *(
            ({"born_host": bytes(size)}, "born_host_illegal", {"born_host": bytes(size)})
            for size in (0, 7, 9, 19, 21)
        ),
        *(
            ({field: value}, "number_out_of_range", {"field": field, "value": value})
            for field in ("flag", "sys_flag", "reconsume_times")
            for value in (-(2**31) - 1, 2**31)
        ),
        *(
            ({field: value}, "number_out_of_range", {"field": field, "value": value})
            for field, value in (
                ("born_at_ms", -(2**63) - 1),
                ("born_at_ms", 2**63),
                ("deliver_after_ms", -1),
                ("deliver_after_ms", 2**63),
                ("deliver_at_ms", -1),
                ("deliver_at_ms", 2**63),
            )
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_message_beyond_a_limit_is_refused_with_limit_and_value(
    beyond: dict[str, Any], code: str, facts: dict[str, Any]
) -> None:
    for _ in range(2):  # A refused topic is not remembered as a good one.
        with pytest.raises(RequestRefused) as refused:
            validate(message(**beyond))
        assert refused.value.code == code
        assert facts.items() <= refused.value.fields.items()


def test_an_endless_topic_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(RequestRefused) as refused:
        validate(message(topic="t" * 1_000_000))
    assert len(str(refused.value)) < 300


def test_the_caches_of_topics_are_bounded() -> None:
    for number in range(CACHED_TOPICS_MAX + 1):
        one_of_many = message(topic=f"topic-{number}")
        validate(one_of_many)
        assert skim(encode(one_of_many, 0, 0, 0, IPV4))[4] == one_of_many.topic
    for cache in (module._legal_topics, module._topic_fields, module._topic_names):
        assert 0 < len(cache) <= CACHED_TOPICS_MAX
    assert decode(GOLDEN_IPV4_V1).topic == "orders"


def test_a_topic_longer_than_ours_may_be_is_read_but_not_remembered() -> None:
    record = encode(message(topic="t" * 30_000), 0, 0, 0, IPV4)
    assert decode(record).topic == "t" * 30_000
    assert max(map(len, module._topic_names), default=0) <= 257
