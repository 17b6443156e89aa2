"""Avro bodies: values as in Avro's specification, and bytes that are not a valid value."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.avro_types import DEPTH_MAX, read_schema
from escrowmq.pipeline.source.avro_values import whole_value

#: A record that refers to a nested type by name.
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "Status"]},
        {"name": "after", "type": "shop.Status"},
    ],
}


def logical(kind: str, name: str, **facts: Any) -> dict[str, Any]:  # noqa: ANN401 -- JSON
    return {"type": kind, "logicalType": name, **facts}


def decoded(schema: Any, body: str) -> Any:  # noqa: ANN401 -- JSON in, any value out
    """Decode hexadecimal bytes with a decoder that was pickled, as for a task."""
    decode = pickle.loads(pickle.dumps(read_schema(json.dumps(schema)).decode))
    return whole_value(decode, bytes.fromhex(body))


def test_a_schema_that_is_not_text_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"bad_option: must be JSON text; json.dumps"):
        read_schema(ORDER)  # type: ignore[arg-type]  # what a user's mistake is


@pytest.mark.parametrize(
    ("schema", "spark", "body", "value"),
    [
        ("boolean", "boolean", "01", True),
        # Examples from the specification.
        ("long", "bigint", "00", 0),
        ("long", "bigint", "01", -1),
        ("long", "bigint", "02", 1),
        ("long", "bigint", "7f", -64),
        ("long", "bigint", "8001", 64),
        ("long", "bigint", "ffffffffffffffffff01", -(2**63)),
        ("int", "int", "feffffff0f", 2**31 - 1),
        ("float", "float", "0000c03f", 1.5),
        ("double", "double", "000000000000f83f", 1.5),
        ("bytes", "binary", "0400ff", b"\x00\xff"),
        ("string", "string", "06666f6f", "foo"),
        (
            {
                "type": "record",
                "name": "test",
                "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
            },
            "struct<a:bigint,b:string>",
            "3606666f6f",
            (27, "foo"),
        ),
        ({"type": "array", "items": "long"}, "array<bigint>", "04063600", [3, 27]),
        # The same array with its size in bytes, and in two blocks.
        ({"type": "array", "items": "long"}, "array<bigint>", "0304063600", [3, 27]),
        ({"type": "array", "items": "long"}, "array<bigint>", "0206023600", [3, 27]),
        ({"type": "map", "values": "long"}, "map<string,bigint>", "0202610200", {"a": 1}),
        (["null", "string"], "string", "00", None),
        (["null", "string"], "string", "020261", "a"),
        (["string", "null"], "string", "000261", "a"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "string", "02", "B"),
        ({"type": "fixed", "name": "f", "size": 2}, "binary", "00ff", b"\x00\xff"),
        ({"type": {"type": "string"}}, "string", "0261", "a"),
        (
            ORDER,
            "struct<id:bigint,status:string,before:string,after:string>",
            "02000202" + "00",
            (1, "NEW", "PAID", "NEW"),
        ),
        (logical("int", "date"), "date", "02", date(1970, 1, 2)),
        (
            logical("long", "timestamp-millis"),
            "timestamp",
            "02",
            datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=UTC),
        ),
        (
            logical("long", "timestamp-micros"),
            "timestamp",
            "01",
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ),
        (
            logical("long", "local-timestamp-millis"),
            "timestamp_ntz",
            "02",
            datetime(1970, 1, 1, 0, 0, 0, 1_000),  # noqa: DTZ001 -- a local timestamp has no time zone
        ),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            "decimal(4,2)",
            "0401a4",
            Decimal("4.20"),
        ),
        (
            {"name": "d", "size": 2, **logical("fixed", "decimal", precision=4)},
            "decimal(4,0)",
            "ffff",
            Decimal(-1),
        ),
        # An unsupported logical type is read as its underlying type.
        (logical("string", "uuid"), "string", "0261", "a"),
        (logical("long", "of-next-year"), "bigint", "02", 1),
    ],
)
def test_values_are_those_of_the_specification(
    schema: Any,  # noqa: ANN401 -- JSON
    spark: str,
    body: str,
    value: object,
) -> None:
    assert read_schema(json.dumps(schema)).spark.simpleString() == spark
    assert decoded(schema, body) == value


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        ("long", ""),
        ("long", "80"),
        ("long", "0200"),
        ("long", "ffffffffffffffffffff01"),
        ("int", "8080808010"),
        ("double", "00"),
        ("string", "06666f"),
        ("string", "02ff"),
        # Negative length.
        ("bytes", "03"),
        (["null", "string"], "04"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "02"),
        # Billions of items of zero bytes.
        (
            {"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}},
            "feffffffffffffffff01",
        ),
        (logical("int", "date"), "feffffff0f"),
        (logical("long", "timestamp-micros"), "feffffffffffffffff01"),
        (logical("bytes", "decimal", precision=2), "0401a4"),
    ],
)
def test_bytes_that_are_no_value_are_refused(schema: Any, body: str) -> None:  # noqa: ANN401 -- JSON
    with pytest.raises(ValueError, match=r".+"):
        decoded(schema, body)


def nested(depth: int) -> object:
    schema: object = "long"
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("order", "a known type"),
        (7, "the name of a type"),
        ({"items": "long"}, "the name of a type"),
        (["long", "string"], "a union of null and one other type"),
        (["null", "long", "string"], "a union of null and one other type"),
        ({"type": "record", "name": "r"}, "a list of fields"),
        ({"type": "record", "name": "r", "fields": [{"name": "a"}]}, "a list of fields"),
        ({"type": "record", "fields": []}, "a name"),
        ({"type": "enum", "name": "e"}, "a list of symbols"),
        ({"type": "fixed", "name": "f", "size": -1}, "a size"),
        (logical("bytes", "decimal"), "precision"),
        (logical("bytes", "decimal", precision=39), "precision from 1 to 38"),
        (logical("bytes", "decimal", precision=2, scale=3), "no larger scale"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]},
            "does not contain itself",
        ),
        (nested(DEPTH_MAX + 1), "levels"),
    ],
)
def test_a_schema_without_a_spark_type_is_refused(schema: object, says: str) -> None:
    with pytest.raises(RequestRefused, match=says):
        read_schema(json.dumps(schema))


def test_a_schema_is_json() -> None:
    with pytest.raises(RequestRefused, match="JSON"):
        read_schema("order")
