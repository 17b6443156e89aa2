"""Rows in a frame's body, in one of two forms, from one declaration of their columns.

A kind of rows is a ``Row``: its fields are the columns, in order.  As ``msgpack`` rows are a
MessagePack array of arrays, one for each row: small requests need nothing else.  As ``arrow`` they
are an Arrow IPC stream, for Spark and for bulk; that form is in ``own_arrow``, which is imported
when the first such rows come, because whoever only uses the SDK should not pay for it.

What is read is what was declared: these columns in this order, no null where none may be, no more
rows than were allowed.  Anything else is refused before it is used.
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
from escrowmq.protocol.limits import refuse_long

Columns: TypeAlias = Sequence[Sized]
"""Rows turned around: for each column its values, in a list or in what has ``tolist``."""

_INT32_MAX = 2**31 - 1
_ARROW = "escrowmq.protocol.own_arrow"
_FIXED_MAX = 0xF
_ARRAY_BYTES = {0xDC: 2, 0xDD: 4}


class Form(StrEnum):
    """How rows travel."""

    MSGPACK = "msgpack"
    ARROW = "arrow"


class Kind(StrEnum):
    """What a column holds."""

    TEXT = "text"
    BYTES = "bytes"
    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"


class Column(NamedTuple):
    """One column of a kind of rows."""

    name: str
    kind: Kind
    is_nullable: bool
    #: Of a text; 0 where the rows' reader sets no limit.
    chars_max: int = 0


class Row(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, kw_only=True
):
    """The base of every kind of rows."""


RowT = TypeVar("RowT", bound=Row)


@cache
def columns_of(kind: type[Row]) -> tuple[Column, ...]:
    """The columns of a kind of rows, in order."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return tuple(_column(field.name, field.type) for field in described.fields)


def chosen_columns(kind: type[Row], names: str) -> tuple[Column, ...]:
    """Those of the columns that are named, in their own order; all if none is."""
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


def _column(name: str, kind: inspect.Type) -> Column:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    (held,) = (one for one in kinds if not isinstance(one, inspect.NoneType))
    chars_max = (held.max_length or 0) if isinstance(held, inspect.StrType) else 0
    return Column(name, _kind(held), len(kinds) > 1, chars_max)


def _kind(held: inspect.Type) -> Kind:
    if isinstance(held, inspect.IntType):
        return Kind.INT32 if held.le == _INT32_MAX else Kind.INT64
    return {
        inspect.StrType: Kind.TEXT,
        inspect.BytesType: Kind.BYTES,
        inspect.BoolType: Kind.BOOL,
    }[type(held)]


def encode_rows(form: Form, kind: type[RowT], version: int, rows: Sequence[RowT]) -> bytes:
    """These rows."""
    if form is Form.MSGPACK:
        return _encode(rows)
    names = kind.__struct_fields__
    return encode_columns(
        form, kind, version, [[getattr(row, name) for row in rows] for name in names]
    )


def encode_columns(
    form: Form, kind: type[Row], version: int, columns: Columns, names: str = ""
) -> bytes:
    """These rows, given by columns: those that are named, or all."""
    if form is Form.ARROW:
        from escrowmq.protocol import own_arrow

        return own_arrow.encode(chosen_columns(kind, names), version, columns)
    assert len(columns) == len(kind.__struct_fields__)
    return _encode(list(zip(*map(_plain, columns), strict=True)))


def decode_rows(
    form: Form, kind: type[RowT], version: int, body: bytes, *, rows_max: int
) -> list[RowT]:
    """The rows in a body; refused unless they are exactly what was declared."""
    if form is Form.ARROW:
        from escrowmq.protocol import own_arrow

        columns = own_arrow.decode(columns_of(kind), version, body, rows_max=rows_max)
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


def is_loaded(form: Form) -> bool:
    """Whether rows in this form can be read and written at once."""
    return form is Form.MSGPACK or _ARROW in sys.modules


def load_arrow() -> None:
    """Import what the form ``arrow`` needs, which takes a good part of a second."""
    importlib.import_module(_ARROW)


def too_many_rows(count: int, rows_max: int) -> RequestRefused:
    """Say how many there may be."""
    return RequestRefused(
        "too_many_rows", "send them in several requests", rows=count, max=rows_max
    )


def rows_malformed(why: str, **facts: object) -> ProtocolViolation:
    """Say what is wrong with the rows of a body."""
    return ProtocolViolation("rows_malformed", why, **facts)


_encode = msgspec.msgpack.Encoder().encode


def _plain(values: Any) -> Iterable[Any]:  # noqa: ANN401 - one of many kinds of columns
    """MessagePack knows lists only."""
    plain: Iterable[Any] = values.tolist() if hasattr(values, "tolist") else values
    return plain


def _array_count(body: bytes) -> int:
    """How many items the array has that this starts with, before any of them is looked at."""
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
