"""The fields of a request or response, typed and under our names.

On the wire they are ``extFields``: a map from RocketMQ's names to text. Numbers and booleans are
text, too. A JSON header has the map as a JSON object, which this module decodes directly into its
type; a binary header is already decoded into a dict. Each header is declared once, as a ``Header``
whose fields state their wire name where it is not our name in camel case.

Clients differ, so reading is lenient: unknown fields are ignored, numbers may be JSON numbers, and
null counts as absent.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import refuse_long

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

ExtFields: TypeAlias = msgspec.Raw | dict[str, str]
"""The map as received: JSON that is not parsed yet, or the pairs of a binary header."""

#: The field's path or name in an error text of msgspec.
_NAMED = re.compile(r"`\$\.?([^`]*)`$|field `([^`]*)`")


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename="camel"):
    """Base class of all headers."""


HeaderT = TypeVar("HeaderT", bound=Header)

_Scalars: TypeAlias = dict[str, str | int | float | bool | None] | None

_decode_texts = msgspec.json.Decoder(dict[str, str]).decode
_decode_scalars = msgspec.json.Decoder(_Scalars).decode


def read_header(kind: type[HeaderT], ext: ExtFields) -> HeaderT:
    """Decode the fields of this kind of header."""
    try:
        if isinstance(ext, dict):
            return msgspec.convert(ext, kind, strict=False)
        header: HeaderT = _decoder(kind).decode(ext)
    except (ValueError, RecursionError):
        return _read_generously(kind, ext)
    return header


def read_fields(ext: ExtFields) -> dict[str, str]:
    """Return all fields as text, by wire name: the input of a signature."""
    if isinstance(ext, dict):
        return ext
    try:
        # Almost all clients send text only.
        return _decode_texts(ext)
    except (ValueError, RecursionError):
        pass
    try:
        fields = _decode_scalars(ext) or {}
    except (ValueError, RecursionError) as error:
        raise header_malformed("extFields", error) from None
    return {name: _as_text(value) for name, value in fields.items() if value is not None}


def write_fields(header: Header) -> dict[str, str]:
    """Return the map of all fields that have a value."""
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
    """Return the error that names the header and its missing or mistyped field."""
    named = _NAMED.search(str(error))
    field = (named[1] or named[2] or "") if named else ""
    return ProtocolViolation("header_malformed", str(error), header=kind, field=field)


def _read_generously(kind: type[HeaderT], ext: ExtFields) -> HeaderT:
    """Decode what the fast path refuses, such as null for absent or a number for text."""
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
