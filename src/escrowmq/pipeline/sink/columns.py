"""Checks the columns of a DataFrame on the driver, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

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


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Refuse columns that cannot become messages; ``has_topic`` says that an option names one."""
    kinds = _kinds()
    allowed = ", ".join(f"{name} ({kind})" for name, (kind, _) in kinds.items())
    for field in schema.fields:
        if field.name not in kinds:
            raise _bad_column(field.name, f"there are {allowed}")
        kind, fits = kinds[field.name]
        if not fits(field.dataType):
            raise _bad_column(field.name, f"must be {kind}", type=field.dataType.simpleString())
    names = schema.fieldNames()
    if len(names) != len(set(names)):
        raise _bad_column(", ".join(names), "each column once")
    if (BODY in names) == (VALUE in names):
        raise _bad_column(BODY, f"give the messages' bodies as {BODY} or as {VALUE}")
    if BORN_AT in names and BORN_AT_MS in names:
        raise _bad_column(BORN_AT, f"give the time as {BORN_AT} or as {BORN_AT_MS}, not both")
    if TOPIC not in names and not has_topic:
        raise _bad_column(TOPIC, "give it, or the option topic")


def _kinds() -> dict[str, tuple[str, Callable[[DataType], bool]]]:
    from pyspark.sql import types as T  # noqa: N812 - the usual name

    def is_text(kind: DataType) -> bool:
        return isinstance(kind, T.StringType)

    def is_bytes(kind: DataType) -> bool:
        return isinstance(kind, T.StringType | T.BinaryType)

    def is_whole(kind: DataType) -> bool:
        return isinstance(kind, T.IntegralType)

    def is_instant(kind: DataType) -> bool:
        # A timestamp_ntz has no time zone, so it is not an instant.
        return isinstance(kind, T.TimestampType)

    def is_texts(kind: DataType) -> bool:
        return is_text(kind) or (isinstance(kind, T.ArrayType) and is_text(kind.elementType))

    def is_pairs(kind: DataType) -> bool:
        return isinstance(kind, T.MapType) and is_text(kind.keyType) and is_text(kind.valueType)

    return {
        BODY: ("binary or string", is_bytes),
        VALUE: ("binary or string", is_bytes),
        TOPIC: ("string", is_text),
        QUEUE_ID: ("int", is_whole),
        KEY: ("string", is_text),
        KEYS: ("string or array<string>", is_texts),
        TAGS: ("string", is_text),
        PROPERTIES: ("map<string,string>", is_pairs),
        DELAY_MS: ("bigint", is_whole),
        BORN_AT: ("timestamp", is_instant),
        BORN_AT_MS: ("bigint", is_whole),
    }


def _bad_column(column: str, allowed: str, **facts: str) -> RequestRefused:
    return RequestRefused("bad_column", allowed, column=column, **facts)
