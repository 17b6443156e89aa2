"""Messages, timeouts and statuses of gRPC as bytes."""

from __future__ import annotations

import gzip
import zlib

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.protocol.http2.grpc_messages import (
    MESSAGE_HEAD,
    GrpcStatus,
    MessageReader,
    MessageRefused,
    http_answer,
    read_timeout,
    trailers,
)

BYTES_MAX = 1_000


def packed(message: bytes, *, flag: int = 0) -> bytes:
    return MESSAGE_HEAD.pack(flag, len(message)) + message


def fields_of(block: bytes) -> dict[str, str]:
    """Return the fields of a header block, by the reference library."""
    fields = hpack.Decoder().decode(block, raw=True)
    return {name.decode(): value.decode() for name, value in fields}


def reading(encoding: bytes = b"gzip") -> MessageReader:
    return MessageReader(encoding, BYTES_MAX)


@given(st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=8), st.data())
def test_messages_come_out_however_they_are_cut(
    messages: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    stream = b"".join(
        packed(gzip.compress(message), flag=1) if is_packed else packed(message)
        for message, is_packed in messages
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = reading()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if start < end:
            found += reader.feed(stream[start:end])
    assert found == [message for message, _ in messages]
    assert reader.held_bytes == 0


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (packed(bytes(BYTES_MAX + 1)), GrpcStatus.RESOURCE_EXHAUSTED),
        # The size alone is enough.
        (MESSAGE_HEAD.pack(0, 2**32 - 1), GrpcStatus.RESOURCE_EXHAUSTED),
        (packed(b"", flag=2), GrpcStatus.INTERNAL),
        (packed(b"no gzip", flag=1), GrpcStatus.INTERNAL),
        (packed(gzip.compress(b"cut off")[:-1], flag=1), GrpcStatus.INTERNAL),
        (packed(gzip.compress(b"one") + gzip.compress(b"two"), flag=1), GrpcStatus.INTERNAL),
        # A small message that becomes large.
        (packed(gzip.compress(bytes(100_000)), flag=1), GrpcStatus.RESOURCE_EXHAUSTED),
    ],
)
def test_a_message_is_refused(data: bytes, status: GrpcStatus) -> None:
    with pytest.raises(MessageRefused) as refused:
        reading().feed(data)
    assert refused.value.status is status


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(MessageRefused, match="snappy") as refused:
        reading(b"snappy").feed(packed(b"", flag=1))
    assert refused.value.status is GrpcStatus.UNIMPLEMENTED
    assert reading(b"snappy").feed(packed(b"plain")) == [b"plain"]


def test_a_bomb_is_not_unpacked() -> None:
    bomb = zlib.compress(bytes(200 << 20), wbits=31)
    reader = MessageReader(b"gzip", 1 << 20)
    with pytest.raises(MessageRefused) as refused:
        reader.feed(packed(bomb, flag=1))
    assert refused.value.status is GrpcStatus.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3_600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"250m", 0.25),
        (b"5u", 5e-6),
        (b"7n", 7e-9),
        (b"99999999H", 10 * 365 * 24 * 3_600.0),
        (b"", None),
        (b"S", None),
        (b"1", None),
        (b"-1S", None),
        (b"1.5S", None),
        (b"123456789n", None),
    ],
)
def test_a_timeout_is_read(value: bytes, seconds: float | None) -> None:
    found = read_timeout(value)
    assert found == (pytest.approx(seconds) if seconds is not None else None)


def test_the_text_of_a_status_is_percent_encoded() -> None:
    block = trailers(GrpcStatus.INTERNAL, "50 % ü\n", is_only=True)
    found = fields_of(block)
    assert found[":status"] == "200"
    assert found["grpc-status"] == "13"
    assert found["grpc-message"] == "50 %25 %C3%BC%0A"
    assert fields_of(trailers(0)) == {"grpc-status": "0"}


def test_a_status_text_has_a_limit() -> None:
    found = fields_of(trailers(2, "x" * 100_000))
    assert len(found["grpc-message"]) == 1_024


def test_an_answer_for_browsers_says_its_length() -> None:
    block, body = http_answer(415, "no")
    found = fields_of(block)
    assert found == {
        ":status": "415",
        "content-type": "text/plain; charset=utf-8",
        "content-length": str(len(body)),
    }
