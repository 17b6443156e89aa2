"""Generates the reference page of native requests from their table."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import inspect

from escrowmq.protocol.native.headers import (
    NativeAnswer,
    NativeHeader,
    NativeRefusal,
    PagedAnswer,
    PagedHeader,
)
from escrowmq.protocol.native.requests import FIRST_CODE, LAST_CODE, NATIVE_REQUESTS, NativeRequest
from escrowmq.protocol.native.row_forms import NativeRow, columns_of
from tools.reference.comments import describe

_HEAD = f"""\
# Native requests

Written by `make docs` from the code; edit `protocol/native/requests.py` and what it names instead.

Requests that RocketMQ's protocol lacks use the same port and frames. They have the codes
{FIRST_CODE} to {LAST_CODE}. Fields are in the header, as text under the names given here; rows are
in the body.

- **Two forms.** The field `form` says how rows travel, both ways. `msgpack`: a MessagePack array of
  rows, each an array in the order of the columns. `arrow`: an Arrow IPC stream, not compressed,
  with exactly these columns, no dictionaries, and the version under `escrowmq.version` in the
  schema's metadata.
- **Blocks**, where a request says so, whatever its form: the answer's columns stand one after the
  other, each as the little-endian values of all rows, and bytes follow them.
- **One version** for the columns of a request and its answer. Another one is refused with
  `schema_version_unknown`.
- **Pages.** An answer with a `cursor` is not the last: ask again with it, the rest as before.
- **Durable first.** Nothing is answered before what it tells of is on disk.
- **Refusals** have the error's [code](errors.md) and class in their fields, and its text in the
  remark.

This section lists the fields that every request has. Each request's own fields follow.
"""
_TYPES = {
    inspect.StrType: "text",
    inspect.BoolType: "bool",
    inspect.FloatType: "number",
    inspect.EnumType: "text",
}
_INT32_MAX = 2**31 - 1


def page() -> str:
    """Return the page of native requests."""
    return "\n".join(
        [
            _HEAD,
            *_part("Of every request", NativeHeader, None),
            *_part("Of a request for pages", PagedHeader, NativeHeader),
            *_part("Of every answer", NativeAnswer, None),
            *_part("Of an answer in pages", PagedAnswer, NativeAnswer),
            *_part("Of a refusal", NativeRefusal, None),
            *_contents(),
            *(line for request in NATIVE_REQUESTS.values() for line in _request(request)),
        ]
    )


def _part(
    title: str, kind: type[msgspec.Struct], base: type[msgspec.Struct] | None
) -> Iterator[str]:
    yield f"## {title}\n"
    yield from _fields(kind, base)


def _contents() -> Iterator[str]:
    yield "## All requests\n"
    yield "| Code | Name | What it does |"
    yield "|---|---|---|"
    for request in NATIVE_REQUESTS.values():
        name = request.code.name
        yield f"| {request.code.value} | [{name}](#{name.lower()}) | {request.about} |"
    yield ""


def _request(request: NativeRequest) -> Iterator[str]:
    yield f"## {request.code.name}\n"
    yield f"{request.code.value}. {request.about} Version {request.version}.\n"
    #: Its answer may have a cursor.
    is_paged = issubclass(request.answer, PagedAnswer)
    paged = PagedHeader if is_paged else NativeHeader
    if request.header is not paged:
        yield "Fields of the request" + (", and those for pages:\n" if is_paged else ":\n")
        yield from _fields(request.header, paged)
    if request.rows is not None:
        yield f"Rows of the request, at most {request.rows_max}:\n"
        yield from _columns(request.rows)
    base = PagedAnswer if is_paged else NativeAnswer
    if request.answer is not base:
        yield "Fields of the answer:\n"
        yield from _fields(request.answer, base)
    if request.answer_rows is not None:
        per = "a page" if is_paged else "an answer"
        yield f"Rows of the answer, at most {request.answer_rows_max} to {per}:\n"
        yield from _columns(request.answer_rows)
    if request.answer_bytes:
        yield f"They are in blocks. The bytes after them are {request.answer_bytes}.\n"


def _fields(kind: type[msgspec.Struct], base: type[msgspec.Struct] | None) -> Iterator[str]:
    """Tabulate the fields that a header has beyond those of its base."""
    known = set(base.__struct_fields__) if base is not None else set()
    comments = dict(_comments(kind))
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    yield "| Field | Type | Default | What it is |"
    yield "|---|---|---|---|"
    for field in described.fields:
        if field.name not in known:
            default = "" if field.required else _default(field.default)
            about = comments[field.name]
            yield f"| `{field.encode_name}` | {_type(field.type)} | {default} | {about} |"
    yield ""


def _columns(kind: type[NativeRow]) -> Iterator[str]:
    comments = dict(_comments(kind))
    yield "| Column | Type | What it is |"
    yield "|---|---|---|"
    for column in columns_of(kind):
        null = ", may be null" if column.is_nullable else ""
        yield f"| `{column.name}` | {column.kind}{null} | {comments[column.name]} |"
    yield ""


def _comments(kind: type) -> Iterator[tuple[str, str]]:
    """Yield each field of the class and its bases with its comment."""
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("escrowmq."):
            yield from describe(one, is_shared=False)


def _type(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        (held,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
        return f"{_type(held)}, may be absent"
    if isinstance(kind, inspect.IntType):
        return "int32" if kind.le == _INT32_MAX else "int64"
    return _TYPES[type(kind)]


def _default(value: object) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "empty"
