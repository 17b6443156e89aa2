"""Odd but intact messages are read with their problem. Damaged messages are never read."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest

from escrowmq.model.errors import ProtocolViolation, StoreCorrupt
from escrowmq.pipeline.source import bodies, decoding
from escrowmq.pipeline.source.decoding import decode_page
from escrowmq.pipeline.source.stored_records import joined
from escrowmq.protocol.message.stored_message import record_crc
from tests.unit.pipeline.stored_pages import PLACE, QUEUE_ID, decoded, page_of, record_of


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
        # Unknown compression type.
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
    # The check does not depend on the requested columns.
    with pytest.raises(StoreCorrupt, match="message_damaged"):
        decoded(page._replace(data=memoryview(data)), ("queue_id",))


def test_a_damaged_message_is_named_among_those_of_other_queues() -> None:
    first = page_of([record_of(b"first")] * 2, first=10)
    other = page_of([record_of(b"other", b"a\x01b\x02")] * 2, first=20)
    other = other._replace(queue_id=other.queue_id + 1)
    data = bytearray(other.data)
    data[-1] ^= 1
    page = joined([first, other._replace(data=memoryview(data))])
    with pytest.raises(StoreCorrupt, match="message_damaged") as raised:
        decoded(page)
    fields = raised.value.fields
    assert (fields["queue_id"], fields["queue_offset"]) == (QUEUE_ID + 1, 21)


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
        # The sizes of the body, the topic and the properties.
        (87, 200),
        (88, 100),
        (96, 9),
        # The flag bits for longer host addresses.
        (39, 0x30),
    ],
)
def test_parts_that_do_not_fit_are_refused(at: int, value: int) -> None:
    record = bytearray(record_of())
    record[at] = value
    # The checksum is valid, as if a faulty writer had made the record.
    crc = np.array([record_crc(record) or 0])
    page = page_of([record_of()])
    with pytest.raises(ProtocolViolation, match="stored_message_malformed"):
        decoded(page._replace(crc=crc, data=memoryview(record)))
