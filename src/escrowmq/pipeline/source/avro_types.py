"""Avro schemas as Spark types, each with the function that decodes its values.

The driver parses a schema. Its decoder is a tree of small functions, which goes to the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.source import avro_values as v

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from escrowmq.model.errors import RequestRefused

DEPTH_MAX = 64
_NAMED = ("record", "error", "enum", "fixed")


@dataclass(frozen=True)
class AvroType:
    """One type of a schema."""

    spark: DataType
    decode: v.Decoder
    is_nullable: bool = False


def read_schema(text: str) -> AvroType:
    """Parse a schema.

    Raises:
        RequestRefused: ``bad_option``, if it is not an Avro schema, or Spark has no type for it.
    """
    if not isinstance(text, str | bytes | bytearray):
        raise _refused("JSON text; json.dumps makes it of a dict", str(text))
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
            return _plain(schema) or self._known(schema, namespace)
        if not isinstance(schema, Mapping):
            raise _refused("the name of a type, an object or an array", schema)
        kind = schema.get("type")
        if not isinstance(kind, str):
            return self.read(kind, namespace, depth - 1)
        if kind in _NAMED:
            return self._new(schema, namespace, depth)
        if kind in ("array", "map"):
            part = schema.get("items" if kind == "array" else "values")
            held = self.read(part, namespace, depth - 1)
            return _array(held) if kind == "array" else _map(held)
        return _logical(schema) or _plain(kind) or self._known(kind, namespace)

    def _known(self, name: str, namespace: str) -> AvroType:
        full = _full(name, namespace)
        found = self._named.get(full)
        if found is None:
            allowed = "a type that does not hold itself" if full in self._named else "a known type"
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
        from pyspark.sql.types import StructField, StructType

        fields = schema.get("fields")
        if not isinstance(fields, list) or not all(_is_field(one) for one in fields):
            raise _refused("a list of fields, each with a name and a type", schema)
        read = [(one["name"], self.read(one["type"], namespace, depth - 1)) for one in fields]
        spark = StructType([StructField(name, one.spark, one.is_nullable) for name, one in read])
        return AvroType(spark, partial(v.decode_record, tuple(one.decode for _, one in read)))

    def _union(self, schemas: list[Any], namespace: str, depth: int) -> AvroType:
        others = [one for one in schemas if one != "null"]
        if len(others) != 1 or len(schemas) != len(("null", "other")):
            raise _refused("a union of null and one other type: Spark has no other", schemas)
        held = self.read(others[0], namespace, depth - 1)
        decode = partial(v.decode_optional, schemas.index(others[0]), held.decode)
        return AvroType(held.spark, decode, is_nullable=True)


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _is_field(field: object) -> bool:
    return isinstance(field, Mapping) and isinstance(field.get("name"), str) and "type" in field


def _plain(name: str) -> AvroType | None:
    from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

    found: dict[str, tuple[DataType, v.Decoder]] = {
        "boolean": (T.BooleanType(), v.decode_boolean),
        "int": (T.IntegerType(), partial(v.decode_whole, 31)),
        "long": (T.LongType(), partial(v.decode_whole, 63)),
        "float": (T.FloatType(), partial(v.decode_packed, "<f")),
        "double": (T.DoubleType(), partial(v.decode_packed, "<d")),
        "bytes": (T.BinaryType(), v.decode_bytes),
        "string": (T.StringType(), v.decode_text),
    }
    return AvroType(*found[name]) if name in found else None


def _array(item: AvroType) -> AvroType:
    from pyspark.sql.types import ArrayType

    return AvroType(ArrayType(item.spark, item.is_nullable), partial(v.decode_array, item.decode))


def _map(value: AvroType) -> AvroType:
    from pyspark.sql.types import MapType, StringType

    spark = MapType(StringType(), value.spark, value.is_nullable)
    return AvroType(spark, partial(v.decode_map, value.decode))


def _leaf(schema: Mapping[str, Any]) -> AvroType:
    """An enum, or a fixed number of bytes."""
    from pyspark.sql.types import BinaryType, StringType

    if schema["type"] == "enum":
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
            raise _refused("a list of symbols", schema)
        return AvroType(StringType(), partial(v.decode_enum, tuple(symbols)))
    size = schema.get("size")
    if not isinstance(size, int) or size < 0:
        raise _refused("a size of 0 or more", schema)
    raw = partial(v.decode_fixed, size)
    return _decimal(schema, raw) or AvroType(BinaryType(), raw)


def _logical(schema: Mapping[str, Any]) -> AvroType | None:
    """The logical type. As Avro requires, an unknown one is read as its underlying type."""
    from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

    found: dict[tuple[object, object], tuple[DataType, v.Decoder]] = {
        ("int", "date"): (T.DateType(), v.decode_date),
        ("long", "timestamp-millis"): (T.TimestampType(), partial(v.decode_instant, 1_000)),
        ("long", "timestamp-micros"): (T.TimestampType(), partial(v.decode_instant, 1_000_000)),
        ("long", "local-timestamp-millis"): (
            T.TimestampNTZType(),
            partial(v.decode_local_time, 1_000),
        ),
        ("long", "local-timestamp-micros"): (
            T.TimestampNTZType(),
            partial(v.decode_local_time, 1_000_000),
        ),
    }
    key = (schema["type"], schema.get("logicalType"))
    if key in found:
        return AvroType(*found[key])
    return _decimal(schema, v.decode_bytes) if key[0] == "bytes" else None


def _decimal(schema: Mapping[str, Any], raw: v.Decoder) -> AvroType | None:
    from pyspark.sql.types import DecimalType

    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise _refused("whole numbers as precision and scale", schema)
    if not 0 <= scale <= precision <= v.DIGITS_MAX or not precision:
        raise _refused(f"a precision from 1 to {v.DIGITS_MAX} and no larger scale", schema)
    return AvroType(DecimalType(precision, scale), partial(v.decode_decimal, scale, precision, raw))


def _refused(allowed: str, given: object) -> RequestRefused:
    return bad_option("schema", allowed, given if isinstance(given, str) else json.dumps(given))
