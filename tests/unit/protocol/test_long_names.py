"""Every text in a request has a limit, and a refusal names the field that exceeds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import NAME_CHARS_MAX, check_name
from escrowmq.protocol.native.columns import decode_columns
from escrowmq.protocol.native.requests import NATIVE_REQUESTS
from escrowmq.protocol.native.row_forms import NativeRow, RowForm, decode_rows, encode_rows
from escrowmq.protocol.remoting.bodies import JsonBody, LockRequest, encode_body, read_body
from escrowmq.protocol.remoting.client_bodies import CheckClientRequest, Heartbeat
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import Header, read_header
from tests.unit.protocol.request_headers import REQUEST_HEADERS

BODIES: tuple[type[JsonBody], ...] = (
    Heartbeat,
    CheckClientRequest,
    LockRequest,
    GroupConfig,
)
#: Texts with their own limits: `properties` is refused as too large, the others are cut.
APART = {("properties", "SendHeader"), ("properties", "LongSendHeader")} | {
    ("properties", "SentRow"),
    ("properties", "SentInRow"),
    ("reason", "DecideByHandHeader"),
    ("reason", "VerdictRow"),
    ("error_text", "LedgerReportRow"),
}

HEADERS = sorted(
    {
        *(
            kind
            for code, kind in REQUEST_HEADERS.items()
            # The broker sends this header, and never reads it.
            if code is not RequestCode.CHECK_TRANSACTION_STATE
        ),
        *(request.header for request in NATIVE_REQUESTS.values()),
    },
    key=lambda kind: kind.__name__,
)
ROWS = [request.rows for request in NATIVE_REQUESTS.values() if request.rows is not None]


def texts(kind: inspect.Type, name: str, owner: str) -> Iterator[tuple[str, str, int | None]]:
    """Yield each text in a type: the struct and field that hold it, and its limit."""
    match kind:
        case inspect.StrType():
            yield owner, name, kind.max_length
        case inspect.StructType():
            for field in kind.fields:
                yield from texts(field.type, field.name, kind.cls.__name__)
        case inspect.UnionType():
            for one in kind.types:
                yield from texts(one, name, owner)
        case inspect.VarTupleType() | inspect.ListType():
            yield from texts(kind.item_type, name, owner)
        case inspect.DictType():
            yield from texts(kind.key_type, name, owner)
            yield from texts(kind.value_type, name, owner)


@pytest.mark.parametrize("kind", [*HEADERS, *BODIES, *ROWS], ids=lambda kind: kind.__name__)
def test_every_text_of_a_request_has_a_limit(kind: type[msgspec.Struct]) -> None:
    found = list(texts(inspect.type_info(kind), "", ""))
    assert {(name, owner) for owner, name, limit in found if limit is None} <= APART


def text_fields(kind: type[msgspec.Struct]) -> list[inspect.Field]:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    return [
        field
        for field in described.fields
        if (field.name, kind.__name__) not in APART
        and (isinstance(field.type, inspect.StrType) or is_optional_text(field.type))
    ]


def is_optional_text(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.UnionType) and any(
        isinstance(one, inspect.StrType) for one in kind.types
    )


def limit_of(field: inspect.Field) -> int:
    """Return the most characters of a text field; most fields are names."""
    kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    (limit,) = (one.max_length for one in kinds if isinstance(one, inspect.StrType))
    assert limit is not None
    return limit


def valid(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the required fields, as text."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    texts_of = {inspect.IntType: "1", inspect.BoolType: "true"}
    return {
        field.encode_name: texts_of.get(type(field.type), "x")
        for field in described.fields
        if field.required
    }


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_binary", [False, True], ids=["json", "binary"])
def test_a_header_with_a_name_of_ten_megabytes_is_refused(
    kind: type[Header], *, is_binary: bool
) -> None:
    huge = "x" * 10_000_000
    for field in text_fields(kind):
        fields = valid(kind) | {field.encode_name: huge}
        ext: Any = fields if is_binary else msgspec.Raw(msgspec.json.encode(fields))
        with pytest.raises(RequestRefused, match="name_too_long") as refused:
            read_header(kind, ext)
        told = refused.value.fields
        assert (told["field"], told["chars"]) == (field.encode_name, len(huge))
        assert len(str(refused.value)) < 400


def test_a_name_of_the_limit_is_taken() -> None:
    for kind in HEADERS:
        for field in text_fields(kind):
            read_header(kind, valid(kind) | {field.encode_name: "x" * NAME_CHARS_MAX})
    check_name("topic", "x" * NAME_CHARS_MAX)
    with pytest.raises(RequestRefused, match="name_too_long"):
        check_name("topic", "x" * (NAME_CHARS_MAX + 1))


LONG = "x" * (NAME_CHARS_MAX + 1)


@pytest.mark.parametrize(
    ("kind", "said", "field"),
    [
        (Heartbeat, {"clientID": LONG}, "clientID"),
        (Heartbeat, {"clientID": "c", "producerDataSet": [{"groupName": LONG}]}, "groupName"),
        (
            Heartbeat,
            {
                "clientID": "c",
                "consumerDataSet": [
                    {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": LONG}]}
                ],
            },
            "topic",
        ),
        (Heartbeat, {"clientID": "c", "consumerDataSet": [{"groupName": "g", "consumeType": LONG}]},
         "consumeType"),
        (GroupConfig, {"groupName": "g", "attributes": {LONG: "v"}}, "attributes"),
        # A null counts as absent, also in the search for the long name.
        (LockRequest, {"consumerGroup": LONG, "clientId": "c", "mqSet": None}, "consumerGroup"),
    ],
)  # fmt: skip
def test_a_body_with_a_name_too_long_is_refused(
    kind: type[JsonBody], said: dict[str, object], field: str
) -> None:
    with pytest.raises(RequestRefused, match="name_too_long") as refused:
        read_body(kind, msgspec.json.encode(said))
    assert refused.value.fields["field"] == field
    assert encode_body(kind(**{"client_id": "c"} if kind is Heartbeat else _least(kind)))


def _least(kind: type[JsonBody]) -> dict[str, str]:
    return {"name": "g"} if kind is GroupConfig else {"consumer_group": "g", "client_id": "c"}


def row_of(kind: type[NativeRow], **given: object) -> NativeRow:
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    values: dict[type, object] = {
        inspect.StrType: "x",
        inspect.BytesType: b"",
        inspect.BoolType: False,
        inspect.IntType: 0,
    }
    return kind(**{field.name: values.get(type(field.type)) for field in described.fields} | given)


@pytest.mark.parametrize("form", list(RowForm))
@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_a_row_with_a_name_too_long_is_refused(kind: type[NativeRow], form: RowForm) -> None:
    for field in text_fields(kind):
        chars_max = limit_of(field)
        long = "x" * (chars_max + 1)
        rows = [row_of(kind), row_of(kind, **{field.name: long}), row_of(kind)]
        body = encode_rows(form, kind, 1, rows)
        for decode in (decode_rows, decode_columns):
            with pytest.raises(RequestRefused, match="name_too_long") as refused:
                decode(form, kind, 1, body, rows_max=3)
            assert refused.value.fields["field"] == field.name
        # The limit counts characters, not bytes.
        fine = encode_rows(form, kind, 1, [row_of(kind, **{field.name: "ü" * chars_max})] * 3)
        assert len(decode_rows(form, kind, 1, fine, rows_max=3)) == 3
