"""Rows for tests of the lake, with defaults for the columns that a test does not set."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.lake.tables import DATE, LakeTable

#: 2026-11-01 00:00 UTC.
MIDNIGHT_MS = 1_793_491_200_000
DAY_MS = 86_400_000


def rows_of(table: LakeTable, *rows: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch with the table's columns except ``date``. Missing values are null."""
    fields = [field for field in table.arrow_schema() if field.name != DATE]
    return pa.RecordBatch.from_pylist(list(rows), schema=pa.schema(fields))


def message(topic: str, offset: int, at_ms: int = MIDNIGHT_MS, **rest: Any) -> dict[str, Any]:  # noqa: ANN401 -- columns are of all types
    """Return the row of a message."""
    place = {"broker": "b", "topic": topic, "queue_id": 0, "queue_offset": offset}
    return {**place, "visible_at_ms": at_ms, "body": b"body", **rest}
