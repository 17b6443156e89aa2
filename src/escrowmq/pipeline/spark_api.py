"""The parts of PySpark's API that differ between Spark 4.0 and 4.3, under one name each.

Every other module of the source, the views and the sink imports these names from here, so that it
loads on each of these versions. If Spark lacks a name, a class of our own with the same fields
replaces it. ``HAS_READ_LIMITS`` tells whether Spark has the classes of read limits.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyspark.sql.datasource as _datasource
from pyspark.sql.datasource import DataSourceStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
    from pyspark.sql.types import StructType

    HAS_READ_LIMITS: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        #: Since Spark 4.2: Spark tells a stream reader its start, its limit and ``availableNow``.
        HAS_READ_LIMITS = True
    except ImportError:
        HAS_READ_LIMITS = False

        class ReadLimit:
            """How much one batch of a stream may read."""

        @dataclass
        class ReadAllAvailable(ReadLimit):
            """Everything that is available."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """At most this many rows."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """At most this many bytes."""

            max_bytes: int

        class SupportsTriggerAvailableNow:
            """Marks a reader that can fix its end offset when a query begins."""

    #: Since Spark 4.1, a stream writer gets Arrow batches. Before that, it gets rows.
    DataSourceStreamArrowWriter = getattr(
        _datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter
    )

__all__ = [
    "HAS_READ_LIMITS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow form of a Spark schema, with timestamps in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4.0 and 4.1 lack this parameter and always use UTC.
    has_timezone = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if has_timezone else to_arrow_schema(schema)
