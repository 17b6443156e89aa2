"""The columns of a message, and the selection of columns for a read."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructField, StructType

from escrowmq.pipeline.options import bad_option
from escrowmq.pipeline.source.column_types import SPARK, TIMESTAMP

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
BORN_AT = "born_at"
STORED_AT = "stored_at"
VISIBLE_AT = "visible_at"
RECONSUME_TIMES = "reconsume_times"
TRANSACTION_ID = "transaction_id"
PROBLEM = "problem"
PROPERTIES = "properties"
HALF_OFFSET = "half_offset"
BORN_AT_MS = "born_at_ms"
STORED_AT_MS = "stored_at_ms"
VISIBLE_AT_MS = "visible_at_ms"

#: Timestamp columns, and the millisecond column that each is made from.
INSTANTS = {BORN_AT: BORN_AT_MS, STORED_AT: STORED_AT_MS, VISIBLE_AT: VISIBLE_AT_MS}

#: In the order of the schema. The types are SQL names.
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
    BORN_AT: TIMESTAMP,
    STORED_AT: TIMESTAMP,
    VISIBLE_AT: TIMESTAMP,
    RECONSUME_TIMES: "int",
    TRANSACTION_ID: "string",
    PROBLEM: "string",
    PROPERTIES: "map<string,string>",
    # Only of a message that was a half message.
    HALF_OFFSET: "bigint",
    **dict.fromkeys(INSTANTS.values(), "bigint"),
}
#: Columns that are read only if the options name them.
EXTRA = (PROPERTIES, HALF_OFFSET, *INSTANTS.values())


def chosen(columns: Sequence[str], *, with_properties: bool) -> tuple[str, ...]:
    """The columns that these options select."""
    for name in columns:
        if name not in TYPES:
            raise bad_option("columns", f"some of {', '.join(TYPES)}", name)
    if columns:
        return tuple(dict.fromkeys(columns))
    left_out = set(EXTRA) - ({PROPERTIES} if with_properties else set())
    return tuple(name for name in TYPES if name not in left_out)


def spark_schema(columns: Sequence[str]) -> StructType:
    """The Spark schema of these columns."""
    return StructType([StructField(name, SPARK[TYPES[name]]) for name in columns])
