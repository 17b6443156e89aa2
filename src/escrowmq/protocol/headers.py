"""The fields of a request or response, typed and under our names.

On the wire they are ``extFields``: a map from RocketMQ's names to text, numbers and truth values
included.  A JSON header has the map as a JSON object, read here straight into its type; a binary
header has it already read, as a dict.  What is wanted is declared once for each header, as a
``Header`` whose fields say their wire name where it is not our own in camel case.

Clients differ, so reading is generous: fields we do not know are passed over, numbers may come as
numbers, null counts as absent.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.limits import refuse_long

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

ExtFields: TypeAlias = msgspec.Raw | dict[str, str]
"""The map as it came: JSON that was not looked into yet, or a binary header's pairs."""

#: A field's place or name in what msgspec says of it.
_NAMED = re.compile(r"`\$\.?([^`]*)`$|field `([^`]*)`")


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """The base of every header."""


HeaderT = TypeVar("HeaderT", bound=Header)

_Scalars: TypeAlias = dict[str, str | int | float | bool | None] | None

_decode_scalars = msgspec.json.Decoder(_Scalars).decode


def read_header(kind: type[HeaderT], ext: ExtFields) -> HeaderT:
    """Read the fields that this kind of header has."""
    try:
        if isinstance(ext, dict):
            return msgspec.convert(ext, kind, strict=False)
        header: HeaderT = _decoder(kind).decode(ext)
    except (ValueError, RecursionError):
        return _read_generously(kind, ext)
    return header


def read_fields(ext: ExtFields) -> dict[str, str]:
    """All fields as text, under their wire names: what a signature is made over."""
    if isinstance(ext, dict):
        return ext
    try:
        fields = _decode_scalars(ext) or {}
    except (ValueError, RecursionError) as error:
        raise header_malformed("extFields", error) from None
    return {name: _as_text(value) for name, value in fields.items() if value is not None}


def write_fields(header: Header) -> dict[str, str]:
    """Make the map of a header: every field that has a value."""
    fields = {}
    for name, wire_name in _names(type(header)):
        value = getattr(header, name)
        kind = type(value)
        if kind is str:
            fields[wire_name] = value
        elif kind is int:
            fields[wire_name] = f"{value}"
        elif value is not None:
            fields[wire_name] = _as_text(value)
    return fields


def header_malformed(kind: str, error: Exception) -> ProtocolViolation:
    """Say which field of which header is missing or of the wrong type."""
    named = _NAMED.search(str(error))
    field = (named[1] or named[2] or "") if named else ""
    return ProtocolViolation("header_malformed", str(error), header=kind, field=field)


def _read_generously(kind: type[HeaderT], ext: ExtFields) -> HeaderT:
    """Read what the fast way refused: there a null is not absent, and a number is not text."""
    fields = read_fields(ext)
    try:
        return msgspec.convert(fields, kind, strict=False)
    except ValueError as error:
        refuse_long(kind, fields)
        raise header_malformed(kind.__name__, error) from None


def _as_text(value: object) -> str:
    if value is True:
        return "true"
    return "false" if value is False else str(value)


@cache
def _decoder(kind: type[HeaderT]) -> msgspec.json.Decoder[HeaderT]:
    return msgspec.json.Decoder(kind, strict=False)


@cache
def _names(kind: type[Header]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
