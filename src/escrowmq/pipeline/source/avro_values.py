"""Avro's binary values: the bytes of one body in, Python values out. Nothing here needs Spark.

Decoding ends for any input: each read advances or fails, and the number of array and map items in
one body is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, TypeAlias

ITEMS_MAX = 1_000_000
"""Limit of array and map items in one body: items of zero bytes could otherwise fill the memory."""

VARINT_BYTES_MAX = 10
DIGITS_MAX = 38
"""The most digits of a decimal, as in Spark."""

_MORE_FOLLOWS = 0x80
_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=DIGITS_MAX)


class AvroValueError(ValueError):
    """Bytes that are not a value of the schema."""


class Cursor:
    """A read position in one body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._items_left = ITEMS_MAX

    @property
    def is_at_end(self) -> bool:
        """Whether all bytes are read."""
        return self._at == len(self._data)

    def take(self, count: int) -> bytes:
        """The next bytes."""
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise AvroValueError("the body ends too early")
        taken, self._at = self._data[self._at : end], end
        return taken

    def whole(self) -> int:
        """The next variable-length integer."""
        value = 0
        for index in range(VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & ~_MORE_FOLLOWS) << 7 * index
            if not byte & _MORE_FOLLOWS:
                return (value >> 1) ^ -(value & 1)
        raise AvroValueError("a number is too long")

    def block(self) -> int:
        """The number of items in the next block; 0 at the end of an array or a map."""
        count = self.whole()
        if count < 0:
            # The size of the block in bytes, for readers that skip blocks.
            self.whole()
            count = -count
        self._items_left -= count
        if self._items_left < 0:
            raise AvroValueError(f"more than {ITEMS_MAX} items")
        return count


Decoder: TypeAlias = Callable[[Cursor], Any]


def whole_value(decode: Decoder, body: bytes) -> Any:  # noqa: ANN401 -- of any type
    """Decode bytes that hold exactly one value.

    Raises:
        ValueError: The bytes are not a value of the decoder's type, or hold more than one.
    """
    cursor = Cursor(body)
    value = decode(cursor)
    if not cursor.is_at_end:
        raise AvroValueError("bytes are left after the value")
    return value


def decode_boolean(cursor: Cursor) -> bool:
    """One byte."""
    return cursor.take(1) != b"\x00"


def decode_whole(bits: int, cursor: Cursor) -> int:
    """An integer of this many bits besides its sign."""
    value = cursor.whole()
    if not -(2**bits) <= value < 2**bits:
        raise AvroValueError("a number is out of range")
    return value


def decode_packed(form: str, cursor: Cursor) -> float:
    """A number of fixed length, in a ``struct`` format."""
    (value,) = struct.unpack(form, cursor.take(struct.calcsize(form)))
    return float(value)


def decode_bytes(cursor: Cursor) -> bytes:
    """A length, and that many bytes."""
    return cursor.take(cursor.whole())


def decode_fixed(size: int, cursor: Cursor) -> bytes:
    """As many bytes as the schema says."""
    return cursor.take(size)


def decode_text(cursor: Cursor) -> str:
    """A length, and that many bytes of UTF-8."""
    # UnicodeDecodeError is also a ValueError.
    return decode_bytes(cursor).decode()


def decode_enum(symbols: tuple[str, ...], cursor: Cursor) -> str:
    """The index of a symbol."""
    index = cursor.whole()
    if not 0 <= index < len(symbols):
        raise AvroValueError("no such symbol")
    return symbols[index]


def decode_record(fields: tuple[Decoder, ...], cursor: Cursor) -> tuple[Any, ...]:
    """The values of the fields, in order."""
    return tuple(decode(cursor) for decode in fields)


def decode_array(item: Decoder, cursor: Cursor) -> list[Any]:
    """Blocks of items."""
    items: list[Any] = []
    while count := cursor.block():
        items += [item(cursor) for _ in range(count)]
    return items


def decode_map(value: Decoder, cursor: Cursor) -> dict[str, Any]:
    """Blocks of keys and values."""
    pairs: dict[str, Any] = {}
    while count := cursor.block():
        for _ in range(count):
            key = decode_text(cursor)
            pairs[key] = value(cursor)
    return pairs


def decode_optional(place: int, held: Decoder, cursor: Cursor) -> Any:  # noqa: ANN401 -- of any type
    """A union of null and another type; `place` is the index of that other type."""
    chosen = cursor.whole()
    if chosen not in (0, 1):
        raise AvroValueError("no such branch of the union")
    return held(cursor) if chosen == place else None


# Logical types.


def decode_date(cursor: Cursor) -> date:
    """Days since 1970."""
    days = decode_whole(31, cursor)
    try:
        return _EPOCH_DAY + timedelta(days=days)
    except OverflowError:
        raise AvroValueError("a date is out of range") from None


def decode_instant(per_second: int, cursor: Cursor) -> datetime:
    """Milliseconds or microseconds since 1970, in UTC."""
    micros = decode_whole(63, cursor) * (1_000_000 // per_second)
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise AvroValueError("a time is out of range") from None


def decode_local_time(per_second: int, cursor: Cursor) -> datetime:
    """Milliseconds or microseconds since 1970, without a time zone."""
    return decode_instant(per_second, cursor).replace(tzinfo=None)


def decode_decimal(scale: int, precision: int, raw: Decoder, cursor: Cursor) -> Decimal:
    """Decode a big-endian signed integer that counts units of 10 ** -scale."""
    unscaled = int.from_bytes(raw(cursor), signed=True)
    if abs(unscaled) >= 10**precision:
        raise AvroValueError("a decimal has too many digits")
    return _EXACT.scaleb(Decimal(unscaled), -scale)
