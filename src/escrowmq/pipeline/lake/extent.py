"""The contents of the lake: how much, and of which days. Read from Delta's log alone."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.lake.delta import Lake, told
from escrowmq.pipeline.lake.tables import DATE, TABLES


class Extent(NamedTuple):
    """The extent of one table."""

    table: str
    rows: int
    files: int
    size_bytes: int
    #: None if the table is empty.
    first_day: str | None
    last_day: str | None
    #: Delta's version; None if the table does not exist yet.
    version: int | None


def extents(lake: Lake) -> list[Extent]:
    """The extents of all tables."""
    found = []
    for table in TABLES.values():
        delta = lake.find(table)
        if delta is None:
            found.append(Extent(table.name, 0, 0, 0, None, None, None))
            continue
        with told(table):
            actions = pa.table(delta.get_add_actions(flatten=True))
        days = pc.min_max(actions[f"partition.{DATE}"]).as_py()
        found.append(
            Extent(
                table=table.name,
                rows=pc.sum(actions["num_records"]).as_py() or 0,
                files=actions.num_rows,
                size_bytes=pc.sum(actions["size_bytes"]).as_py() or 0,
                first_day=days["min"] and str(days["min"]),
                last_day=days["max"] and str(days["max"]),
                version=delta.version(),
            )
        )
    return found
