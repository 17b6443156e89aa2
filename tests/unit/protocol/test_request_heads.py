"""Heads of requests are read fast if they repeat, and mean the same either way."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.protocol.http2.header_blocks import HeaderDecoder, encode_fields
from escrowmq.protocol.http2.request_heads import TEMPLATES_MAX, HeadReader, checked_head
from escrowmq.protocol.http2.violations import Http2Violation

LIST_BYTES_MAX = 1 << 16
START = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/B"),
    (b":authority", b"host:1"),
]
GRPC = [(b"te", b"trailers"), (b"content-type", b"application/grpc")]

NAMES = [b"x-mq-client-id", b"x-mq-request-id", b"grpc-timeout", b"x-long"]
values = st.one_of(
    st.binary(max_size=20), st.binary(min_size=120, max_size=200), st.just(b"always")
)
#: Which fields a request has, and their values.
extras = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=4)


def reader() -> HeadReader:
    """Return a reader whose peer has turned its table off."""
    made = HeadReader(LIST_BYTES_MAX)
    assert made.read_request(b"\x20" + encode_fields([*START, *GRPC])).is_grpc
    return made


def joined(fields: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        found[name] = found[name] + b"," + value if name in found else value
    return found


@given(st.lists(st.tuples(extras, st.booleans(), st.sampled_from([0, 0, 0, 4_096])), max_size=12))
def test_a_head_means_the_same_whether_or_not_it_repeats(
    requests: list[tuple[list[tuple[bytes, bytes]], bool, int]],
) -> None:
    encoder = hpack.Encoder()
    reading = HeadReader(LIST_BYTES_MAX)
    for extra, is_huffman, table_bytes in requests:
        encoder.header_table_size = table_bytes
        fields = [*START, *GRPC, *extra]
        # Twice, so that the second one is read by a template.
        for _ in range(2):
            head = reading.read_request(encoder.encode(fields, huffman=is_huffman))
            assert head.problem == ""
            assert head.is_grpc
            expected = joined(fields)
            assert {name: head.get(name) for name in expected} == expected
            assert head.get(b"x-other") is None


def test_requests_that_repeat_are_not_decoded() -> None:
    reading = reader()
    fields = [*START, *GRPC, (b"x-mq-client-id", b"me"), (b"x-mq-request-id", b"%d")]
    for number in range(2):
        reading.read_request(encode_fields([*fields[:-1], (b"x-mq-request-id", b"%d" % number)]))

    def fail(_block: bytes) -> None:
        raise AssertionError

    reading.decoder.decode = fail  # type: ignore[assignment, method-assign]
    for number in range(2, 300):
        head = reading.read_request(
            encode_fields([*fields[:-1], (b"x-mq-request-id", b"7" * number)])
        )
        assert head.get(b"x-mq-request-id") == b"7" * number
        assert head.get(b":path") == b"/a/B"


def test_a_value_that_is_checked_is_checked_each_time() -> None:
    reading = reader()
    good = [*START, (b"content-length", b"1"), *GRPC]
    for _ in range(3):
        assert reading.read_request(encode_fields(good)).content_length == 1
    bad = [(name, b"gzip" if name == b"te" else value) for name, value in good]
    assert reading.read_request(encode_fields(bad)).problem
    longer = [(name, b"23" if name == b"content-length" else value) for name, value in good]
    assert reading.read_request(encode_fields(longer)).content_length == 23


def test_a_block_that_is_cut_off_is_refused() -> None:
    reading = reader()
    for number in range(3):
        reading.read_request(encode_fields([*START, *GRPC, (b"x-long", bytes(200 + number))]))
    whole = encode_fields([*START, *GRPC, (b"x-long", bytes(300))])
    assert reading.read_request(whole).get(b"x-long") == bytes(300)
    for size in range(len(whole)):
        assert long_value(reading, whole[:size]) is None


def long_value(reading: HeadReader, block: bytes) -> bytes | None:
    """Return the value of the last field; None if the block is refused."""
    try:
        return reading.read_request(block).get(b"x-long")
    except Http2Violation:
        return None


def test_shapes_are_limited() -> None:
    reading = reader()
    for number in range(100):
        reading.read_request(encode_fields([*START, *GRPC, (b"x-%d" % number, b"")]))
    assert len(reading._templates) == TEMPLATES_MAX


@pytest.mark.parametrize(
    "fields",
    [
        START[1:],  # No method.
        [*START[:2], (b":path", b""), *GRPC],  # An empty path.
        [*START, START[0]],  # A method twice.
        [*START, *GRPC, (b":authority", b"late")],
        [*START, (b":status", b"200")],
        [*START, (b"X-Upper", b"")],
        [*START, (b"", b"")],
        [*START, (b"connection", b"close")],
        [*START, (b"te", b"gzip")],
        [*START, (b"content-length", b"many")],
        [*START, (b"content-length", b"9" * 30)],
        [*START, (b"content-length", b"1"), (b"content-length", b"1")],
        [],
    ],
)
def test_a_malformed_head_has_a_problem(fields: list[tuple[bytes, bytes]]) -> None:
    block = encode_fields(fields)
    assert checked_head(HeaderDecoder(LIST_BYTES_MAX).decode(block)).problem
    reading = reader()
    assert reading.read_request(block).problem
    assert reading.read_request(block).problem


def test_trailers_have_no_pseudo_fields() -> None:
    reading = reader()
    assert reading.read_trailers(encode_fields([(b"x-sum", b"1")])) == ""
    assert reading.read_trailers(encode_fields(START))
    assert reading.read_trailers(encode_fields([(b"Upper", b"")]))
