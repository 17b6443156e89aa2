"""Avro schemas as Spark types, each with the function that decodes its values.

The driver parses a schema. Its decoder is a tree of small functions, which goes to the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.source import avro_values as v

DEPTH_MAX = 64
_NAMED = ("record", "error", "enum", "fixed")


@dataclass(frozen=True)
class AvroType:
    """One type of a schema."""

    spark: T.DataType
    decode: v.Decoder
    is_nullable: bool = False


_PLAIN = {
    "boolean": AvroType(T.BooleanType(), v.decode_boolean),
    "int": AvroType(T.IntegerType(), partial(v.decode_whole, 31)),
    "long": AvroType(T.LongType(), partial(v.decode_whole, 63)),
    "float": AvroType(T.FloatType(), partial(v.decode_packed, "<f")),
    "double": AvroType(T.DoubleType(), partial(v.decode_packed, "<d")),
    "bytes": AvroType(T.BinaryType(), v.decode_bytes),
    "string": AvroType(T.StringType(), v.decode_text),
}
_LOGICAL = {
    ("int", "date"): AvroType(T.DateType(), v.decode_date),
    **{
        ("long", f"{local}timestamp-{unit}"): AvroType(kind, partial(decode, per_second))
        for local, kind, decode in (
            ("", T.TimestampType(), v.decode_instant),
            ("local-", T.TimestampNTZType(), v.decode_local_time),
        )
        for unit, per_second in (("millis", 1_000), ("micros", 1_000_000))
    },
}


def read_schema(text: str) -> AvroType:
    """Parse a schema.

    Raises:
        RequestRefused: ``bad_option``, if it is not an Avro schema, or Spark has no type for it.
    """
    if not isinstance(text, str | bytes | bytearray):
        raise _refused("must be JSON text; json.dumps converts a dict", str(text))
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise _refused(f"JSON: {error}", text) from None
    return _Schema().read(parsed, "", DEPTH_MAX)


class _Schema:
    """Parses one schema, and remembers its named types."""

    def __init__(self) -> None:
        #: By full name; None while the type itself is being parsed.
        self._named: dict[str, AvroType | None] = {}

    def read(self, schema: Any, namespace: str, depth: int) -> AvroType:  # noqa: ANN401 -- JSON
        """Parse a part of it."""
        if not depth:
            raise _refused(f"at most {DEPTH_MAX} levels", schema)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if isinstance(schema, str):
            return _PLAIN.get(schema) or self._known(schema, namespace)
        if not isinstance(schema, Mapping):
            raise _refused("the name of a type, an object or an array", schema)
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.read(kind, namespace, depth - 1)
        if kind in _NAMED:
            return self._new(schema, namespace, depth)
        if kind in ("array", "map"):
            part = schema.get("items" if kind == "array" else "values")
            return _collection(kind, self.read(part, namespace, depth - 1))
        return _logical(schema) or _PLAIN.get(kind) or self._known(kind, namespace)

    def _known(self, name: str, namespace: str) -> AvroType:
        full = _full(name, namespace)
        found = self._named.get(full)
        if found is None:
            is_recursive = full in self._named
            allowed = "a type that does not contain itself" if is_recursive else "a known type"
            raise _refused(allowed, name)
        return found

    def _new(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        name = schema.get("name")
        if not isinstance(name, str) or not name:
            raise _refused("a name for each record, enum and fixed", schema)
        full = _full(name, str(schema.get("namespace", namespace)))
        self._named[full] = None
        if schema["type"] in ("record", "error"):
            made = self._record(schema, full.rpartition(".")[0], depth)
        else:
            made = _leaf(schema)
        self._named[full] = made
        return made

    def _record(self, schema: Mapping[str, Any], namespace: str, depth: int) -> AvroType:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(_is_field(one) for one in fields):
            raise _refused("a list of fields, each with a name and a type", schema)
        read = [(one["name"], self.read(one["type"], namespace, depth - 1)) for one in fields]
        spark = [T.StructField(name, one.spark, one.is_nullable) for name, one in read]
        return AvroType(
            T.StructType(spark), partial(v.decode_record, tuple(one.decode for _, one in read))
        )

    def _union(self, schemas: list[Any], namespace: str, depth: int) -> AvroType:
        others = [one for one in schemas if one != "null"]
        if len(others) != 1 or len(schemas) != len(("null", "other")):
            raise _refused(
                "a union of null and one other type; Spark supports no other unions", schemas
            )
        held = self.read(others[0], namespace, depth - 1)
        place = schemas.index(others[0])
        return AvroType(
            held.spark, partial(v.decode_optional, place, held.decode), is_nullable=True
        )


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _is_field(field: object) -> bool:
    return isinstance(field, Mapping) and isinstance(field.get("name"), str) and "type" in field


def _collection(kind: str, held: AvroType) -> AvroType:
    if kind == "array":
        spark: T.DataType = T.ArrayType(held.spark, held.is_nullable)
        return AvroType(spark, partial(v.decode_array, held.decode))
    spark = T.MapType(T.StringType(), held.spark, held.is_nullable)
    return AvroType(spark, partial(v.decode_map, held.decode))


def _leaf(schema: Mapping[str, Any]) -> AvroType:
    """An enum, or a fixed number of bytes."""
    if schema["type"] == "enum":
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise _refused("a list of symbols", schema)
        return AvroType(T.StringType(), partial(v.decode_enum, tuple(symbols)))
    size = schema.get("size")
    if not isinstance(size, int) or size < 0:
        raise _refused("a size of 0 or more", schema)
    raw = partial(v.decode_fixed, size)
    return _decimal(schema, raw) or AvroType(T.BinaryType(), raw)


def _logical(schema: Mapping[str, Any]) -> AvroType | None:
    """The logical type. As Avro requires, an unknown one is read as its underlying type."""
    if schema["type"] == "bytes":
        return _decimal(schema, v.decode_bytes)
    return _LOGICAL.get((schema["type"], str(schema.get("logicalType"))))


def _decimal(schema: Mapping[str, Any], raw: v.Decoder) -> AvroType | None:
    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise _refused("whole numbers as precision and scale", schema)
    if not 0 <= scale <= precision <= v.DIGITS_MAX or not precision:
        raise _refused(f"a precision from 1 to {v.DIGITS_MAX} and no larger scale", schema)
    decode = partial(v.decode_decimal, scale, precision, raw)
    return AvroType(T.DecimalType(precision, scale), decode)


def _refused(allowed: str, given: object) -> RequestRefused:
    return bad_option("schema", allowed, given if isinstance(given, str) else json.dumps(given))
