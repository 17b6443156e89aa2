"""Header compression of HTTP/2 (HPACK, RFC 7541): header blocks to fields, and fields to blocks.

The encoder uses no dynamic table, so it has no state. The decoder has the dynamic table that every
peer may use until it has acknowledged our settings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from escrowmq.protocol.http2.huffman import decode_huffman
from escrowmq.protocol.http2.static_table import STATIC_TABLE, HeaderField
from escrowmq.protocol.http2.violations import Http2Error, Http2Violation, violation

TABLE_BYTES_DEFAULT = 4_096
ENTRY_BYTES = 32
"""Bytes that each entry counts beyond its name and value."""
#: Decoded strings that are remembered, and the largest of them.
STRINGS_MAX = 4_096
STRING_BYTES_MAX = 128

_HUFFMAN = 0x80
_INDEXED = 0x80
_INCREMENTAL = 0x40
_SIZE_UPDATE = 0x20
_INTEGER_SHIFT_MAX = 28
_SEVEN_BITS = 0x7F
#: A list that exceeds its limit is still decoded, because later blocks need the table; up to this
#: many times the limit.
_OVERFLOW_MAX = 3
_STATIC_COUNT = len(STATIC_TABLE)
_STATIC_NAMES = {name: index for index, (name, _) in reversed([*enumerate(STATIC_TABLE, 1)])}
_STATIC_FIELDS = {field: index for index, field in enumerate(STATIC_TABLE, 1)}

TABLE_OFF = b"\x20"
"""Start of a header block that tells the peer to drop its dynamic table."""

_strings: dict[bytes, bytes] = {}


def malformed(message: str, **fields: object) -> Http2Violation:
    """Return the error for bytes that are no header block."""
    return violation(Http2Error.COMPRESSION_ERROR, message, **fields)


class DecodedField(NamedTuple):
    """A field of a header block, and where it is in the block."""

    name: bytes
    value: bytes
    start: int
    #: Where the value's string begins; 0 if the field is an index.
    value_start: int
    end: int


def read_integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer whose prefix is in these bits, and the position behind it."""
    value = block[at] & mask
    at += 1
    if value < mask:
        return value, at
    for shift in range(0, _INTEGER_SHIFT_MAX, 7):
        byte = block[at]
        at += 1
        value += (byte & _SEVEN_BITS) << shift
        if byte <= _SEVEN_BITS:
            return value, at
    raise malformed("an integer is too large")


def decode_string(raw: bytes) -> bytes:
    """Return the text of a string, given with its length and flag."""
    if raw[0] < _HUFFMAN:
        return raw[1:] if raw[0] < _SEVEN_BITS else raw[read_integer(raw, 0, _SEVEN_BITS)[1] :]
    text = _strings.get(raw)
    if text is None:
        _, start = read_integer(raw, 0, _SEVEN_BITS)
        text = decode_huffman(raw[start:])
        if len(raw) <= STRING_BYTES_MAX:
            if len(_strings) >= STRINGS_MAX:
                _strings.clear()
            _strings[raw] = text
    return text


def end_of_string(block: bytes, at: int) -> int:
    """Return the position behind a string."""
    size = block[at] & _SEVEN_BITS
    if size < _SEVEN_BITS:
        return at + 1 + size
    size, start = read_integer(block, at, _SEVEN_BITS)
    return start + size


class HeaderListTooLarge(Http2Violation):
    """The fields of one block have too many bytes; the next block can be decoded."""


class HeaderDecoder:
    """Decodes the header blocks of one connection, in order."""

    def __init__(self, list_bytes_max: int) -> None:
        self._list_bytes_max = list_bytes_max
        self._table: deque[HeaderField] = deque()
        self._table_bytes = 0
        #: What the peer's encoder uses, and what it may use.
        self._table_bytes_max = TABLE_BYTES_DEFAULT
        self.table_bytes_limit = TABLE_BYTES_DEFAULT

    @property
    def has_state(self) -> bool:
        """Whether the meaning of a block depends on earlier blocks."""
        return self._table_bytes_max > 0

    def decode(self, block: bytes) -> list[DecodedField]:
        """Return the fields of a complete header block."""
        try:
            return self._decode(block)
        except IndexError:
            raise malformed("a header block is incomplete") from None

    def _decode(self, block: bytes) -> list[DecodedField]:
        fields: list[DecodedField] = []
        at, end = 0, len(block)
        left = self._list_bytes_max
        while at < end:
            start, first = at, block[at]
            value_start = 0
            if first >= _INDEXED:
                index, at = read_integer(block, at, 0x7F)
                name, value = self._entry(index)
            elif first & 0xE0 == _SIZE_UPDATE:
                if fields:
                    raise malformed("a table size is not at the start of its block")
                size, at = read_integer(block, at, 0x1F)
                self._resize(size)
                continue
            else:
                is_kept = first >= _INCREMENTAL
                index, at = read_integer(block, at, 0x3F if is_kept else 0x0F)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = self._string(block, at)
                value_start = at
                value, at = self._string(block, at)
                if is_kept:
                    self._keep((name, value))
            left -= len(name) + len(value) + ENTRY_BYTES
            if left < -_OVERFLOW_MAX * self._list_bytes_max:
                raise violation(Http2Error.ENHANCE_YOUR_CALM, "a header list does not end")
            fields.append(DecodedField(name, value, start, value_start, at))
        if left < 0:
            raise HeaderListTooLarge(
                "header_list_too_large",
                "send fewer or smaller header fields",
                error=Http2Error.ENHANCE_YOUR_CALM,
                bytes_max=self._list_bytes_max,
            )
        return fields

    def _string(self, block: bytes, at: int) -> tuple[bytes, int]:
        end = end_of_string(block, at)
        if end > len(block):
            raise malformed("a header block is incomplete")
        return decode_string(block[at:end]), end

    def _entry(self, index: int) -> HeaderField:
        if index == 0:
            raise malformed("an index is 0")
        if index <= _STATIC_COUNT:
            return STATIC_TABLE[index - 1]
        if index - _STATIC_COUNT > len(self._table):
            raise malformed("an index is beyond the table", index=index)
        return self._table[index - _STATIC_COUNT - 1]

    def _keep(self, field: HeaderField) -> None:
        self._table.appendleft(field)
        self._table_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict()

    def _resize(self, size: int) -> None:
        if size > self.table_bytes_limit:
            raise malformed("a table size exceeds our setting", bytes=size)
        self._table_bytes_max = size
        self._evict()

    def _evict(self) -> None:
        while self._table_bytes > self._table_bytes_max:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES


def _write_integer(value: int, mask: int, flags: int) -> bytes:
    if value < mask:
        return bytes((flags | value,))
    written = bytearray((flags | mask,))
    value -= mask
    while value > _SEVEN_BITS:
        written.append(value & _SEVEN_BITS | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def encode_fields(fields: Iterable[HeaderField]) -> bytes:
    """Return a header block that needs and leaves no state."""
    parts = []
    for field in fields:
        name, value = field
        index = _STATIC_FIELDS.get(field)
        if index is not None:
            parts.append(_write_integer(index, 0x7F, _INDEXED))
            continue
        index = _STATIC_NAMES.get(name, 0)
        parts.append(_write_integer(index, 0x0F, 0))
        if not index:
            parts += (_write_integer(len(name), _SEVEN_BITS, 0), name)
        parts += (_write_integer(len(value), _SEVEN_BITS, 0), value)
    return b"".join(parts)
