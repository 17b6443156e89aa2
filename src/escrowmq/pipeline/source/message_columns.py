"""The columns of a message, and which of them somebody wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.pipeline.options import bad_option

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

BROKER = "broker"
TOPIC = "topic"
QUEUE_ID = "queue_id"
QUEUE_OFFSET = "queue_offset"
LOG_OFFSET = "log_offset"
MESSAGE_ID = "message_id"
UNIQUE_KEY = "unique_key"
KEYS = "keys"
TAGS = "tags"
BODY = "body"
FLAG = "flag"
SYS_FLAG = "sys_flag"
BORN_AT_MS = "born_at_ms"
STORED_AT_MS = "stored_at_ms"
VISIBLE_AT_MS = "visible_at_ms"
RECONSUME_TIMES = "reconsume_times"
TRANSACTION_ID = "transaction_id"
PROBLEM = "problem"
PROPERTIES = "properties"
HALF_OFFSET = "half_offset"

#: In the order in which they come; the types as SQL names them.
TYPES = {
    BROKER: "string",
    TOPIC: "string",
    QUEUE_ID: "int",
    QUEUE_OFFSET: "bigint",
    LOG_OFFSET: "bigint",
    MESSAGE_ID: "string",
    UNIQUE_KEY: "string",
    KEYS: "string",
    TAGS: "string",
    BODY: "binary",
    FLAG: "int",
    SYS_FLAG: "int",
    BORN_AT_MS: "bigint",
    STORED_AT_MS: "bigint",
    VISIBLE_AT_MS: "bigint",
    RECONSUME_TIMES: "int",
    TRANSACTION_ID: "string",
    PROBLEM: "string",
    PROPERTIES: "map<string,string>",
    # Of a message that was a half message.
    HALF_OFFSET: "bigint",
}
#: Not among them unless it is asked for.
EXTRA = (PROPERTIES, HALF_OFFSET)


def chosen(columns: Sequence[str], *, with_properties: bool) -> tuple[str, ...]:
    """The columns that these options ask for."""
    for name in columns:
        if name not in TYPES:
            raise bad_option("columns", f"some of {', '.join(TYPES)}", name)
    if columns:
        return tuple(dict.fromkeys(columns))
    left_out = set(EXTRA) - ({PROPERTIES} if with_properties else set())
    return tuple(name for name in TYPES if name not in left_out)


def spark_schema(columns: Sequence[str]) -> StructType:
    """These columns as Spark knows them."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(name, _spark_type(TYPES[name])) for name in columns])


def checked_schema(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that somebody has given, if they are ours."""
    ours = spark_schema(tuple(TYPES))
    for field in schema:
        if field.name not in TYPES or field.dataType != ours[field.name].dataType:
            allowed = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
            raise bad_option(
                "schema", f"some of {allowed}", f"{field.name} {field.dataType.simpleString()}"
            )
    return tuple(schema.names)


def _spark_type(name: str) -> DataType:
    from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

    return {
        "string": T.StringType(),
        "int": T.IntegerType(),
        "bigint": T.LongType(),
        "binary": T.BinaryType(),
        "map<string,string>": T.MapType(T.StringType(), T.StringType()),
    }[name]
