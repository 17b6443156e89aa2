"""Checks the columns of a DataFrame on the driver, before anything is written."""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.errors import RequestRefused

BODY = "body"
VALUE = "value"
TOPIC = "topic"
QUEUE_ID = "queue_id"
KEY = "key"
KEYS = "keys"
TAGS = "tags"
PROPERTIES = "properties"
DELAY_MS = "delay_ms"
BORN_AT = "born_at"
BORN_AT_MS = "born_at_ms"

#: The types of each column: as an error names them, and the shapes that are accepted.
_KINDS = {
    BODY: ("binary or string", ("binary", "string")),
    VALUE: ("binary or string", ("binary", "string")),
    TOPIC: ("string", ("string",)),
    QUEUE_ID: ("int", ("whole",)),
    KEY: ("string", ("string",)),
    KEYS: ("string or array<string>", ("string", "array<string>")),
    TAGS: ("string", ("string",)),
    PROPERTIES: ("map<string,string>", ("map<string,string>",)),
    DELAY_MS: ("bigint", ("whole",)),
    BORN_AT: ("timestamp", ("timestamp",)),
    BORN_AT_MS: ("bigint", ("whole",)),
}
_SHAPES = {
    "string": T.StringType,
    "binary": T.BinaryType,
    "whole": T.IntegralType,
    # A timestamp_ntz has no time zone, so it is not an instant.
    "timestamp": T.TimestampType,
}


def check_columns(schema: T.StructType, *, has_topic: bool) -> None:
    """Refuse columns that cannot become messages; ``has_topic`` says that an option names one."""
    allowed = ", ".join(f"{name} ({kind})" for name, (kind, _) in _KINDS.items())
    for field in schema.fields:
        if field.name not in _KINDS:
            raise _bad_column(field.name, f"there are {allowed}")
        kind, shapes = _KINDS[field.name]
        if _shape(field.dataType) not in shapes:
            raise _bad_column(field.name, f"must be {kind}", type=field.dataType.simpleString())
    names = schema.fieldNames()
    if len(names) != len(set(names)):
        raise _bad_column(", ".join(names), "give each column once")
    if (BODY in names) == (VALUE in names):
        raise _bad_column(BODY, f"give the messages' bodies as {BODY} or as {VALUE}")
    if BORN_AT in names and BORN_AT_MS in names:
        raise _bad_column(BORN_AT, f"give the time as {BORN_AT} or as {BORN_AT_MS}, not both")
    if TOPIC not in names and not has_topic:
        raise _bad_column(TOPIC, "give this column, or the option topic")


def _shape(kind: T.DataType) -> str:
    if isinstance(kind, T.ArrayType):
        return f"array<{_shape(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"map<{_shape(kind.keyType)},{_shape(kind.valueType)}>"
    return next((name for name, of_shape in _SHAPES.items() if isinstance(kind, of_shape)), "")


def _bad_column(column: str, allowed: str, **facts: str) -> RequestRefused:
    return RequestRefused("bad_column", allowed, column=column, **facts)
