"""gRPC over HTTP/2 as bytes: messages in DATA frames, timeouts, statuses, header blocks."""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct

from escrowmq.protocol.http2.header_blocks import encode_fields
from escrowmq.protocol.http2.static_table import HeaderField

MESSAGE_HEAD = Struct(">BI")
"""Whether a message is compressed, and its size."""
MESSAGE_HEAD_BYTES = MESSAGE_HEAD.size
STATUS_TEXT_CHARS_MAX = 1_024
TIMEOUT_S_MAX = 10 * 365 * 24 * 3_600.0

_GZIP = 16 + zlib.MAX_WBITS
_TIMEOUT_UNITS_S = {
    ord("H"): 3_600.0,
    ord("M"): 60.0,
    ord("S"): 1.0,
    ord("m"): 1e-3,
    ord("u"): 1e-6,
    ord("n"): 1e-9,
}
_TIMEOUT_DIGITS_MAX = 8
#: Printable ASCII except the percent sign stays as it is.
_PLAIN = frozenset(range(0x20, 0x7F)) - {ord("%")}


class GrpcStatus(IntEnum):
    """Status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class MessageRefused(Exception):
    """A client's message cannot be taken; the call ends with this status."""

    def __init__(self, status: GrpcStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


_HEAD: tuple[HeaderField, ...] = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity,gzip"),
)
ANSWER_HEAD = encode_fields(_HEAD)
"""Header block at the start of every answer."""


def trailers(status: int, text: str = "", *, is_only: bool = False) -> bytes:
    """Return the header block that ends a call; ``is_only`` if the answer has no other."""
    fields = [*_HEAD] if is_only else []
    fields.append((b"grpc-status", b"%d" % status))
    if text:
        fields.append((b"grpc-message", _percent_encoded(text)))
    return encode_fields(fields)


TRAILERS_OK = trailers(GrpcStatus.OK)


def http_answer(status: int, text: str) -> tuple[bytes, bytes]:
    """Return header block and body for a client that does not speak gRPC."""
    body = f"{text}\n".encode()
    fields = (
        (b":status", b"%d" % status),
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(body)),
    )
    return encode_fields(fields), body


def _percent_encoded(text: str) -> bytes:
    data = text[:STATUS_TEXT_CHARS_MAX].encode(errors="replace")
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in data)


def read_timeout(value: bytes) -> float | None:
    """Return a ``grpc-timeout`` in seconds; None if it is malformed."""
    digits = value[:-1]
    unit_s = _TIMEOUT_UNITS_S.get(value[-1]) if value else None
    if unit_s is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        return None
    return min(int(digits) * unit_s, TIMEOUT_S_MAX)


def unpacked(data: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """Return a compressed message."""
    if encoding != b"gzip":
        name = encoding.decode("latin-1")
        raise MessageRefused(GrpcStatus.UNIMPLEMENTED, f"grpc-encoding {name!r}: use gzip")
    unpacker = zlib.decompressobj(_GZIP)
    try:
        message = unpacker.decompress(data, bytes_max + 1)
    except zlib.error:
        raise MessageRefused(GrpcStatus.INTERNAL, "a message is not valid gzip") from None
    if len(message) > bytes_max:
        raise too_large(bytes_max)
    if not unpacker.eof or unpacker.unused_data:
        raise MessageRefused(GrpcStatus.INTERNAL, "a message is not exactly one gzip stream")
    return message


def too_large(bytes_max: int) -> MessageRefused:
    """Return the error for a message that is too large."""
    return MessageRefused(
        GrpcStatus.RESOURCE_EXHAUSTED, f"a message may have at most {bytes_max} bytes"
    )


class GrpcMessageReader:
    """Splits the data of one stream into messages."""

    __slots__ = ("_bytes_max", "_encoding", "_parts", "held_bytes")

    def __init__(self, encoding: bytes, bytes_max: int) -> None:
        self._encoding = encoding
        self._bytes_max = bytes_max
        #: Received parts of the next message, and their bytes.
        self._parts: list[bytes] = []
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete with these bytes."""
        self._parts.append(data)
        self.held_bytes += len(data)
        if self.held_bytes < MESSAGE_HEAD_BYTES:
            return []
        if len(self._parts[0]) < MESSAGE_HEAD_BYTES:
            self._parts = [b"".join(self._parts)]
        is_packed, size = MESSAGE_HEAD.unpack_from(self._parts[0])
        self._check(is_packed, size)
        if self.held_bytes < MESSAGE_HEAD_BYTES + size:
            return []
        return self._split(b"".join(self._parts) if len(self._parts) > 1 else self._parts[0])

    def _split(self, data: bytes) -> list[bytes]:
        messages = []
        at, end = 0, len(data)
        while end - at >= MESSAGE_HEAD_BYTES:
            is_packed, size = MESSAGE_HEAD.unpack_from(data, at)
            self._check(is_packed, size)
            start = at + MESSAGE_HEAD_BYTES
            if start + size > end:
                break
            at = start + size
            message = data[start:at]
            messages.append(
                unpacked(message, self._encoding, self._bytes_max) if is_packed else message
            )
        self._parts = [data[at:]] if at < end else []
        self.held_bytes = end - at
        return messages

    def _check(self, is_packed: int, size: int) -> None:
        if is_packed > 1:
            raise MessageRefused(GrpcStatus.INTERNAL, "a message has an unknown flag")
        if size > self._bytes_max:
            raise too_large(self._bytes_max)
