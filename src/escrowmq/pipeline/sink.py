"""One batch of messages, written exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter
    from pyspark.sql.types import StructType


def writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """A writer."""
    raise NotImplementedError(options, schema, overwrite)
