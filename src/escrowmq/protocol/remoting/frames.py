"""Frames of RocketMQ's remoting protocol: split received bytes into frames, encode frames to send.

All integers are big-endian. Layout of a frame::

    size of the rest                                4
    header type << 24 | size of the header          4     type 0 is JSON, 1 is binary
    header
    body

A JSON header is decoded in two steps. The first step decodes the fields of every frame and leaves
``extFields`` as JSON. The handler of the request decodes those into the type it needs
(``headers.py``).

Both sides may send requests. A response has the ``opaque`` and the header type of its request. A
one-way request gets no response.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Protocol

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.remoting.binary_header import decode_binary_header, encode_binary_header
from escrowmq.protocol.remoting.codes import (
    OUR_LANGUAGE,
    OUR_VERSION,
    UNKNOWN_LANGUAGE,
    language_name,
)
from escrowmq.protocol.remoting.headers import ExtFields, Header, Int32, write_fields

FRAME_BYTES_MAX = 16 * 1024 * 1024
#: A longer remark is cut.
REMARK_CHARS_MAX = 4_096
OPAQUE_MAX = 2**31 - 1

FLAG_RESPONSE = 0x1
FLAG_ONE_WAY = 0x2

_TYPE_JSON = 0
_TYPE_BINARY = 1
_HEADER_BYTES_MAX = 2**24 - 1
_BINARY_BIT = _TYPE_BINARY << 24

_WORD = Struct(">I")
_SIZE = Struct(">i")
_WORD_BYTES = _WORD.size
_TWO_WORDS = Struct(">II")
_NO_FIELDS = msgspec.Raw(b"{}")
_JSON_HEADER = (
    b'{"code":%%d,"flag":%%d,"language":"%b","opaque":%%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":%d%%b%%b}' % (OUR_LANGUAGE.encode(), OUR_VERSION)
)

_encode_json = msgspec.json.Encoder().encode


class FieldSigner(Protocol):
    """Signs requests with a user's secret."""

    def sign(self, code: int, fields: dict[str, str], body: bytes) -> None:
        """Add the fields of a signature to those of a request."""
        ...


class _Envelope(msgspec.Struct, gc=False):
    """Fields of every JSON header. Only ``code`` and ``opaque`` are required."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None
    ext: msgspec.Raw = msgspec.field(name="extFields", default=_NO_FIELDS)


_decode_envelope = msgspec.json.Decoder(_Envelope, strict=False).decode


class RemotingFrame(msgspec.Struct, frozen=True, gc=False):
    """One request or response, with its ``extFields`` not decoded yet."""

    code: int
    opaque: int
    flag: int
    language: str
    version: int
    remark: str
    ext: ExtFields
    body: bytes
    is_binary: bool

    @property
    def is_response(self) -> bool:
        """Whether it answers the request with the same ``opaque``."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_one_way(self) -> bool:
        """Whether the sender expects no response."""
        return self.flag & FLAG_ONE_WAY != 0


class FrameSplitter:
    """Splits one connection's bytes into frames, however they are cut into chunks.

    It buffers less than one frame between two chunks. After a violation the start of the next
    frame is unknown, so each further chunk raises the same violation again.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._rest = bytearray()
        self._wanted_bytes = _WORD_BYTES
        #: Fields of a violation. Not the exception itself: its traceback would keep this splitter
        #: and the bytes being read alive until the cycle collector runs.
        self._violation: tuple[str, str, dict[str, object]] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Buffered bytes of an incomplete frame."""
        return len(self._rest)

    def allow(self, frame_bytes_max: int) -> None:
        """Accept frames up to this size from now on."""
        self._frame_bytes_max = frame_bytes_max

    def feed(self, chunk: bytes) -> Iterator[RemotingFrame]:
        """Yield all frames that this chunk completes. Exhaust the iterator before the next chunk.

        A violation is raised after the frames before it.
        """
        if self._violation is not None:
            code, message, fields = self._violation
            raise ProtocolViolation(code, message, **fields)
        if self._rest:
            self._rest += chunk
            if len(self._rest) < self._wanted_bytes:
                return
            chunk = bytes(self._rest)
            self._rest.clear()
        try:
            yield from self._split(chunk)
        except ProtocolViolation as violation:
            self._violation = (violation.code, violation.message, violation.fields)
            raise

    def _split(self, chunk: bytes) -> Iterator[RemotingFrame]:
        at, end = 0, len(chunk)
        wanted_bytes = _WORD_BYTES
        while end - at >= _WORD_BYTES:
            (size,) = _SIZE.unpack_from(chunk, at)
            if not _WORD_BYTES <= size <= self._frame_bytes_max:
                raise _illegal_size(size, self._frame_bytes_max)
            frame_end = at + _WORD_BYTES + size
            if frame_end > end:
                wanted_bytes += size
                break
            yield _decode(chunk, at + _WORD_BYTES, frame_end)
            at = frame_end
        self._rest += chunk[at:]
        self._wanted_bytes = wanted_bytes


def decode_frame(payload: bytes | bytearray, *, is_body_copied: bool = True) -> RemotingFrame:
    """Decode one frame without its first four bytes.

    Without ``is_body_copied`` the body is a memoryview, for callers that use it as a buffer.
    """
    if len(payload) < _WORD_BYTES:
        raise _malformed("truncated", size=len(payload))
    (word,) = _WORD.unpack_from(payload)
    body_at = _WORD_BYTES + (word & _HEADER_BYTES_MAX)
    if body_at > len(payload):
        raise _malformed("header passes the frame's end", size=word & _HEADER_BYTES_MAX)
    # Slicing a memoryview copies each part only once.
    view = memoryview(payload)
    body: bytes = bytes(view[body_at:]) if is_body_copied else view[body_at:]  # type: ignore[assignment]  # a buffer, too
    return _from_parts(word >> 24, bytes(view[_WORD_BYTES:body_at]), body)


def frame_size(first: bytes | bytearray) -> int:
    """Return the number of bytes after the first four bytes of a frame."""
    size: int = _SIZE.unpack(first)[0]
    if not _WORD_BYTES <= size <= FRAME_BYTES_MAX:
        raise _illegal_size(size, FRAME_BYTES_MAX)
    return size


def encode_response(
    request: RemotingFrame,
    code: int,
    *,
    header: Header | None = None,
    remark: str = "",
    body: bytes = b"",
) -> bytes:
    """Encode a response with the header type of its request."""
    head = response_head(request, code, header=header, remark=remark, body_bytes=len(body))
    return head + body if body else head


def response_head(
    request: RemotingFrame,
    code: int,
    *,
    header: Header | None = None,
    remark: str = "",
    body_bytes: int = 0,
) -> bytes:
    """Encode a response without its body, which the caller sends separately after it."""
    return _head(
        code,
        request.opaque,
        FLAG_RESPONSE,
        fields=write_fields(header) if header is not None else {},
        remark=remark,
        body_bytes=body_bytes,
        is_binary=request.is_binary,
    )


def encode_request(
    code: int,
    opaque: int,
    *,
    header: Header | None = None,
    remark: str = "",
    body: bytes = b"",
    is_one_way: bool = False,
    is_binary: bool = False,
    signer: FieldSigner | None = None,
) -> bytes:
    """Encode a request to the other side."""
    flag = FLAG_ONE_WAY if is_one_way else 0
    fields = write_fields(header) if header is not None else {}
    if signer is not None:
        signer.sign(code, fields, body)
    head = _head(
        code, opaque, flag, fields=fields, remark=remark, body_bytes=len(body), is_binary=is_binary
    )
    return head + body


def _decode(data: bytes, at: int, end: int) -> RemotingFrame:
    (word,) = _WORD.unpack_from(data, at)
    header_at = at + _WORD_BYTES
    body_at = header_at + (word & _HEADER_BYTES_MAX)
    if body_at > end:
        raise _malformed("header passes the frame's end", size=word & _HEADER_BYTES_MAX)
    return _from_parts(word >> 24, data[header_at:body_at], data[body_at:end])


def _from_parts(header_type: int, header: bytes, body: bytes) -> RemotingFrame:
    if header_type == _TYPE_JSON:
        return _from_json(header, body)
    if header_type != _TYPE_BINARY:
        raise _malformed("neither a JSON nor a binary header", type=header_type)
    code, language, version, opaque, flag, remark, fields = decode_binary_header(header)
    return RemotingFrame(
        code, opaque, flag, language_name(language), version, remark, fields, body, is_binary=True
    )


def _from_json(header: bytes, body: bytes) -> RemotingFrame:
    try:
        envelope = _decode_envelope(header)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"JSON header: {error}") from None
    language = envelope.language
    if type(language) is not str:
        language = UNKNOWN_LANGUAGE if language is None else language_name(int(language))
    return RemotingFrame(
        envelope.code,
        envelope.opaque,
        envelope.flag,
        language,
        envelope.version,
        envelope.remark or "",
        envelope.ext,
        body,
        is_binary=False,
    )


def _head(
    code: int,
    opaque: int,
    flag: int,
    *,
    fields: dict[str, str],
    remark: str,
    body_bytes: int,
    is_binary: bool,
) -> bytes:
    remark = remark[:REMARK_CHARS_MAX]
    if is_binary:
        raw = encode_binary_header(code, opaque, flag, remark, fields)
        type_bit = _BINARY_BIT
    else:
        raw = _JSON_HEADER % (
            code,
            flag,
            opaque,
            b',"remark":%b' % _encode_json(remark) if remark else b"",
            b',"extFields":%b' % _encode_json(fields) if fields else b"",
        )
        type_bit = 0
    assert len(raw) <= _HEADER_BYTES_MAX
    return _TWO_WORDS.pack(_WORD_BYTES + len(raw) + body_bytes, type_bit | len(raw)) + raw


def _illegal_size(size: int, size_max: int) -> ProtocolViolation:
    if size > size_max:
        return ProtocolViolation("frame_too_large", bytes=size, bytes_max=size_max)
    return _malformed("size is negative or leaves no room for a header", size=size)


def _malformed(message: str, **fields: object) -> ProtocolViolation:
    return ProtocolViolation("frame_malformed", message, **fields)
