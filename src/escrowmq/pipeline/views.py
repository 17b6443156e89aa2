"""Facts about transactions as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> StructType:
    """The columns."""
    raise NotImplementedError(options)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """A reader of what is there now."""
    raise NotImplementedError(options, schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """A reader of what comes."""
    raise NotImplementedError(options, schema)
