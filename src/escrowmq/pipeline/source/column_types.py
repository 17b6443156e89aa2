"""Types of the columns that the source reads: SQL names, and times in Spark's form.

Brokers report times as whole milliseconds since 1970 in UTC. A Spark TIMESTAMP is the same instant
in microseconds. It has no time zone of its own, and each session shows it in
``spark.sql.session.timeZone``.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import types as T  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.pipeline.options import bad_option

TIMESTAMP = "timestamp"

TIMESTAMP_MS_MAX = (2**63 - 1) // 1_000_000
"""The last instant that pandas can hold, in the year 2262, because it counts nanoseconds.

Python's own datetime ends in the year 9999. A producer may send any number as its time. Instants
outside of this range become NULL, so that one message cannot break ``toPandas`` or ``collect``.
"""

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SPARK: dict[str, T.DataType] = {
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "bigint": T.LongType(),
    TIMESTAMP: T.TimestampType(),
    "map<string,string>": T.MapType(T.StringType(), T.StringType()),
}
"""Spark's types by their SQL names."""


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """The Arrow schema of the batches that a reader with this Spark schema yields."""
    return pa.schema(
        [
            pa.field(field.name, _ARROW[field.dataType.simpleString()], field.nullable)
            for field in schema
        ]
    )


def timestamps(instants_ms: pa.Array) -> pa.Array:
    """Milliseconds since 1970 as timestamps; NULL if a timestamp cannot hold the instant."""
    bounds = pc.min_max(instants_ms)
    if not _is_held(bounds["min"].as_py() or 0, bounds["max"].as_py() or 0):
        low, high = (pa.scalar(sign * TIMESTAMP_MS_MAX, pa.int64()) for sign in (-1, 1))
        is_held = pc.and_(pc.greater_equal(instants_ms, low), pc.less_equal(instants_ms, high))
        instants_ms = pc.if_else(is_held, instants_ms, pa.scalar(None, pa.int64()))
    return pc.multiply(instants_ms, 1_000).cast(_ARROW[TIMESTAMP])


def _is_held(low_ms: int, high_ms: int) -> bool:
    return low_ms >= -TIMESTAMP_MS_MAX and high_ms <= TIMESTAMP_MS_MAX


def check_schema(schema: T.StructType, types: Mapping[str, str]) -> None:
    """Check a user's schema. It may leave out columns of `types`, but not add or change any."""
    for field in schema:
        if field.name not in types or field.dataType != SPARK[types[field.name]]:
            known = ", ".join(f"{name} {kind}" for name, kind in types.items())
            given = f"{field.name} {field.dataType.simpleString()}"
            raise bad_option("schema", f"some of {known}", given)
