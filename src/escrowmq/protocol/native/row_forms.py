"""Rows in a frame's body, in one of two forms, from one declaration of their columns.

A kind of rows is a ``NativeRow``: its fields are the columns, in order. The form ``msgpack`` is a
MessagePack array with one array per row, for small requests. The form ``arrow`` is an Arrow IPC
stream, for Spark and bulk requests. ``arrow.py`` implements it, and is imported with the first
such rows, because users of the SDK alone should not pay for the import.

Rows must match the declaration: the same columns in the same order, no nulls in columns without
null, and no more rows than allowed. The reader refuses anything else before using it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence, Sized
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.message.limits import refuse_long

RowColumns: TypeAlias = Sequence[Sized]
"""Rows by column: each column's values as a list, or as an object with ``tolist``."""

_INT32_MAX = 2**31 - 1
_ARROW = "escrowmq.protocol.native.arrow"
_FIXED_MAX = 0xF
_ARRAY_BYTES = {0xDC: 2, 0xDD: 4}


class RowForm(StrEnum):
    """Encoding of rows."""

    MSGPACK = "msgpack"
    ARROW = "arrow"


class ColumnType(StrEnum):
    """Type of a column."""

    TEXT = "text"
    BYTES = "bytes"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"


class NativeColumn(NamedTuple):
    """One column of a kind of rows."""

    name: str
    kind: ColumnType
    is_nullable: bool
    #: Longest text; 0 if the reader of the rows sets no limit.
    chars_max: int = 0


class NativeRow(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, kw_only=True
):
    """Base class of all kinds of rows."""


RowT = TypeVar("RowT", bound=NativeRow)


@cache
def columns_of(kind: type[NativeRow]) -> tuple[NativeColumn, ...]:
    """Return the columns of a kind of rows, in order."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return tuple(_column(field.name, field.type) for field in described.fields)


def chosen_columns(kind: type[NativeRow], names: str) -> tuple[NativeColumn, ...]:
    """Return the named columns in their declared order, or all columns if ``names`` is empty."""
    columns = columns_of(kind)
    if not names:
        return columns
    wanted = {name.strip() for name in names.split(",")}
    chosen = tuple(column for column in columns if column.name in wanted)
    if len(chosen) < len(wanted):
        raise RequestRefused(
            "column_unknown",
            f"name some of {', '.join(column.name for column in columns)}",
            columns=names[:256],
        )
    return chosen


def _column(name: str, kind: inspect.Type) -> NativeColumn:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    (held,) = (one for one in kinds if not isinstance(one, inspect.NoneType))
    chars_max = (held.max_length or 0) if isinstance(held, inspect.StrType) else 0
    return NativeColumn(name, _kind(held), len(kinds) > 1, chars_max)


def _kind(held: inspect.Type) -> ColumnType:
    if isinstance(held, inspect.IntType):
        return ColumnType.INT32 if held.le == _INT32_MAX else ColumnType.INT64
    return {
        inspect.StrType: ColumnType.TEXT,
        inspect.BytesType: ColumnType.BYTES,
        inspect.BoolType: ColumnType.BOOL,
    }[type(held)]


def encode_rows(form: RowForm, kind: type[RowT], version: int, rows: Sequence[RowT]) -> bytes:
    """Encode rows in this form."""
    if form is RowForm.MSGPACK:
        return _encode(rows)
    names = kind.__struct_fields__
    return encode_columns(
        form, kind, version, [[getattr(row, name) for row in rows] for name in names]
    )


def encode_columns(
    form: RowForm, kind: type[NativeRow], version: int, columns: RowColumns, names: str = ""
) -> bytes:
    """Encode rows given by column. In Arrow, ``names`` selects the columns; empty means all."""
    if form is RowForm.ARROW:
        from escrowmq.protocol.native import arrow

        return arrow.encode(chosen_columns(kind, names), version, columns)
    assert len(columns) == len(kind.__struct_fields__)
    return _encode(list(zip(*map(_plain, columns), strict=True)))


def decode_rows(
    form: RowForm, kind: type[RowT], version: int, body: bytes, *, rows_max: int
) -> list[RowT]:
    """Decode the rows of a body; refuse them unless they match the declaration exactly."""
    if form is RowForm.ARROW:
        from escrowmq.protocol.native import arrow

        columns = arrow.decode(columns_of(kind), version, body, rows_max=rows_max)
        names = kind.__struct_fields__
        return [kind(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    count = _array_count(body)
    if count > rows_max:
        raise too_many_rows(count, rows_max)
    try:
        return _decoder(kind).decode(body)
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, RecursionError):
            for row in msgspec.msgpack.decode(body):
                refuse_long(kind, row)
        raise rows_malformed(str(error)) from None


def is_loaded(form: RowForm) -> bool:
    """Return whether rows in this form can be read and written without an import."""
    return form is RowForm.MSGPACK or _ARROW in sys.modules


def load_arrow() -> None:
    """Import the modules of the form ``arrow``, which takes a large part of a second."""
    importlib.import_module(_ARROW)


def too_many_rows(count: int, rows_max: int) -> RequestRefused:
    """Return the error that states the allowed number of rows."""
    return RequestRefused(
        "too_many_rows", "send them in several requests", rows=count, max=rows_max
    )


def rows_malformed(why: str, **facts: object) -> ProtocolViolation:
    """Return the error that says what is wrong with the rows of a body."""
    return ProtocolViolation("rows_malformed", why, **facts)


_encode = msgspec.msgpack.Encoder().encode


def _plain(values: Any) -> Iterable[Any]:  # noqa: ANN401 - one of many kinds of columns
    """Convert a column to a list, because MessagePack can only encode lists."""
    plain: Iterable[Any] = values.tolist() if hasattr(values, "tolist") else values
    return plain


def _array_count(body: bytes) -> int:
    """Return the length of the array at the start of the body, without decoding its items."""
    if not body:
        raise rows_malformed("a body with rows is an array")
    first = body[0]
    if first >> 4 == 0x9:  # noqa: PLR2004 - MessagePack's short array
        return first & _FIXED_MAX
    size = _ARRAY_BYTES.get(first)
    if size is None or len(body) <= size:
        raise rows_malformed("a body with rows is an array")
    return int.from_bytes(body[1 : 1 + size], "big")


@cache
def _decoder(kind: type[RowT]) -> msgspec.msgpack.Decoder[list[RowT]]:
    return msgspec.msgpack.Decoder(list[kind])  # type: ignore[valid-type]
