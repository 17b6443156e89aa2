"""Pages of stored messages become the columns that reading them one by one gives."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation, StoreCorrupt
from escrowmq.model.message import Message
from escrowmq.pipeline import bodies, decoding
from escrowmq.pipeline import message_columns as c
from escrowmq.pipeline.decoding import decode_page
from escrowmq.pipeline.stored_records import Page, Place
from escrowmq.protocol.ids import offset_message_id
from escrowmq.protocol.message_views import stored_at_ms, visible_view
from escrowmq.protocol.properties import find_property, parse_properties
from escrowmq.protocol.stored_message import (
    SYS_PREPARED,
    SYS_TRANSACTION_MASK,
    decode,
    encode,
    record_crc,
)

PLACE = Place("broker-a", "orders", 3)
ALL = tuple(c.TYPES)
V4 = bytes(range(8))
V6 = bytes(range(20))

names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "__transactionId__", "KEY", "KEYSX", "x", ""])
values = st.text("ab \x01é", max_size=5)
pairs = st.lists(st.tuples(names, values, st.sampled_from(["\x01", ""])), max_size=6)


@st.composite
def property_strings(draw: st.DrawFn) -> bytes:
    text = "\x02".join(f"{name}{between}{value}" for name, value, between in draw(pairs))
    return (text + draw(st.sampled_from(["", "\x02"]))).encode()


@st.composite
def records(draw: st.DrawFn, topic: str = PLACE.topic) -> bytes:
    number = st.integers(-(2**31), 2**31 - 1)
    large = st.integers(-(2**63), 2**63 - 1)
    message = Message(
        topic=topic,
        queue_id=PLACE.queue_id,
        body=draw(st.binary(max_size=40)),
        properties=draw(property_strings()),
        flag=draw(number),
        # Not compressed: no random bytes are.
        sys_flag=draw(number) & ~1,
        born_at_ms=draw(large),
        born_host=draw(st.sampled_from([V4, V6])),
        reconsume_times=draw(number),
    )
    bits = draw(st.sampled_from([0, SYS_PREPARED]))
    store_host = draw(st.sampled_from([V4, V6]))
    log_offset = draw(st.integers(0, 2**63 - 1))
    stated = draw(st.integers(0, 2**40))
    return encode(message, stated, log_offset, draw(large), store_host, bits)


def record_of(body: bytes = b"", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    message = Message(
        topic=PLACE.topic, queue_id=3, body=body, properties=properties, sys_flag=sys_flag
    )
    return encode(message, 0, 0, 0, V4)


def page_of(found: list[bytes], first: int = 5, visible_at_ms: int = 1_000) -> Page:
    count = len(found)
    return Page(
        queue_offset=np.arange(first, first + count, dtype=np.int64),
        visible_at_ms=np.arange(visible_at_ms, visible_at_ms + count, dtype=np.int64),
        crc=np.array([record_crc(record) for record in found], dtype=np.int64),
        size=np.array([len(record) for record in found], dtype=np.int32),
        data=memoryview(b"".join(found)),
    )


def told(record: bytes, queue_offset: int, visible_at_ms: int) -> dict[str, Any]:
    """The same, read one by one by the code that serves consumers."""
    message = decode(visible_view(record, queue_offset, visible_at_ms))
    properties = message.properties

    def text(name: str) -> str | None:
        found = find_property(properties, name.encode())
        return None if found is None else found.decode()

    return {
        "broker": "broker-a",
        "topic": message.topic,
        "queue_id": 3,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "message_id": offset_message_id(message.store_host, message.log_offset),
        "unique_key": text("UNIQ_KEY"),
        "keys": text("KEYS"),
        "tags": text("TAGS"),
        "body": message.body,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": stored_at_ms(record),
        "visible_at_ms": visible_at_ms,
        "reconsume_times": message.reconsume_times,
        "transaction_id": text("__transactionId__"),
        "problem": None,
        "properties": sorted(parse_properties(properties).items()),
        "half_offset": decode(record).queue_offset if is_half(record) else None,
    }


def is_half(record: bytes) -> bool:
    return decode(record).sys_flag & SYS_TRANSACTION_MASK == SYS_PREPARED


def decoded(
    page: Page, columns: tuple[str, ...] = ALL, place: Place = PLACE
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in decode_page(page, place, columns):
        batch.validate(full=True)
        rows += batch.to_pylist()
    return [
        {**row, "properties": sorted(row["properties"])} if "properties" in row else row
        for row in rows
    ]


@settings(deadline=None)
@given(st.lists(records(), max_size=8))
def test_any_messages_are_read_as_one_by_one(found: list[bytes]) -> None:
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found)) == expected


@settings(deadline=None)
@given(st.lists(records("t" * 200), min_size=1, max_size=3))
def test_long_topics_have_another_layout(found: list[bytes]) -> None:
    place = PLACE._replace(topic="t" * 200)
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found), place=place) == expected


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.sets(st.sampled_from(ALL), min_size=1))
def test_only_what_is_wanted_comes(found: list[bytes], columns: set[str]) -> None:
    expected = [told(record, 5 + at, 1_000 + at) for at, record in enumerate(found)]
    assert decoded(page_of(found), tuple(columns)) == [
        {name: row[name] for name in columns} for row in expected
    ]


# Odd messages.


def compressed(body: bytes, kind: int = 0) -> bytes:
    return record_of(body, sys_flag=1 | kind << 8)


def packed(codec: str, body: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def body_and_problem(*found: bytes) -> list[tuple[bytes, str | None]]:
    rows = decoded(page_of(list(found)), ("body", "problem"))
    return [(row["body"], row["problem"]) for row in rows]


def test_compressed_bodies_come_as_their_senders_had_them() -> None:
    plain = record_of(b"plain")
    body = b"body" * 100
    assert body_and_problem(
        compressed(zlib.compress(body)),
        plain,
        compressed(zlib.compress(b""), 3),
        compressed(packed("lz4", body), 1),
        compressed(packed("zstd", body), 2),
    ) == [(body, None), (b"plain", None), (b"", None), (body, None), (body, None)]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"not compressed", 0),
        (zlib.compress(b"cut off")[:-1], 0),
        (b"", 3),
        (b"not compressed", 1),
        (packed("lz4", b"cut off" * 100)[:-5], 1),
        (b"not compressed", 2),
        (packed("zstd", b"cut off" * 100)[:-5], 2),
        # Nobody knows this one.
        (zlib.compress(b"body"), 7),
    ],
)
def test_a_body_that_cannot_be_decoded_comes_as_it_is(body: bytes, kind: int) -> None:
    good = compressed(zlib.compress(b"good"))
    assert body_and_problem(compressed(body, kind), good) == [
        (body, "undecodable_body"),
        (b"good", None),
    ]


@pytest.mark.parametrize(("codec", "kind"), [("zlib", 0), ("lz4", 1), ("zstd", 2)])
def test_a_body_that_would_be_too_large_comes_as_it_is(
    monkeypatch: pytest.MonkeyPatch, codec: str, kind: int
) -> None:
    monkeypatch.setattr(bodies, "INFLATED_BYTES_MAX", 1_000)

    def made(size: int) -> bytes:
        return zlib.compress(bytes(size)) if codec == "zlib" else packed(codec, bytes(size))

    assert body_and_problem(compressed(made(1_000), kind), compressed(made(1_001), kind)) == [
        (bytes(1_000), None),
        (made(1_001), "too_large"),
    ]


def test_bodies_that_are_too_large_together_come_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "INFLATED_TOGETHER_MAX", 2_000)
    found = [compressed(zlib.compress(bytes([number]) * 900)) for number in range(7)]
    found.append(compressed(zlib.compress(bytes(3_000))))
    batches = list(decode_page(page_of(found), PLACE, ("queue_offset", "body")))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 1, 1]
    rows = decoded(page_of(found), ("queue_offset", "body"))
    assert [row["queue_offset"] for row in rows] == list(range(5, 13))
    assert [row["body"][:1] for row in rows[:7]] == [bytes([number]) for number in range(7)]


def test_properties_that_are_no_text_are_read_as_far_as_they_are() -> None:
    odd = record_of(properties=b"TAGS\x01a\xff\x02KEYS\x01k\x02")
    fine = record_of(properties="TAGS\x01é\x02".encode())
    rows = decoded(page_of([odd, fine]))
    assert [(row["tags"], row["keys"], row["problem"]) for row in rows] == [
        ("a\ufffd", "k", "odd_properties"),
        ("é", None, None),
    ]
    assert rows[0]["properties"] == [("KEYS", "k"), ("TAGS", "a\ufffd")]


# Damage.


@pytest.mark.parametrize("at", [5, 40, 90, 97, 100, -1])
def test_a_damaged_message_is_never_served(at: int) -> None:
    record = record_of(b"body", b"a\x01b\x02")
    page = page_of([record, record])
    data = bytearray(page.data)
    data[at if at < 0 else len(record) + at] ^= 1
    with pytest.raises(StoreCorrupt, match="message_damaged") as raised:
        decoded(page._replace(data=memoryview(data)))
    assert raised.value.fields["queue_offset"] == 6
    # Whatever is wanted of it.
    with pytest.raises(StoreCorrupt, match="message_damaged"):
        decoded(page._replace(data=memoryview(data)), ("queue_id",))


def test_bytes_that_are_no_messages_are_refused() -> None:
    page = page_of([record_of()] * 2)
    for data, sizes in (
        (page.data[:-1], page.size),
        (page.data, page.size + 1),
        (page.data[:20], np.array([10, 10])),
    ):
        with pytest.raises(ProtocolViolation, match="stored_message_malformed"):
            decoded(page._replace(data=data, size=sizes))


@pytest.mark.parametrize(
    ("at", "value"),
    [
        # The body's size, the topic's and the properties'.
        (87, 200),
        (88, 100),
        (96, 9),
        # The bits that say that hosts are longer.
        (39, 0x30),
    ],
)
def test_parts_that_do_not_fit_are_refused(at: int, value: int) -> None:
    record = bytearray(record_of())
    record[at] = value
    # Whoever wrote it believed it.
    crc = np.array([record_crc(record) or 0])
    page = page_of([record_of()])
    with pytest.raises(ProtocolViolation, match="stored_message_malformed"):
        decoded(page._replace(crc=crc, data=memoryview(record)))
