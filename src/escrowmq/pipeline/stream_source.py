"""Committed messages as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """A reader of what comes."""
    raise NotImplementedError(options, schema)
