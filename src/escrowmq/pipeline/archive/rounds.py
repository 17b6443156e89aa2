"""Archives the summaries of settle rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.tables import SETTLE_ROUNDS

DETAIL = "detail"


def append_rounds(lake: Lake, rounds: Sequence[Mapping[str, Any]]) -> None:
    """Append summaries of rounds, given as mappings of their fields. All of them, or none."""
    if not rounds:
        return
    made = [_row(facts) for facts in rounds]
    rows = pa.RecordBatch.from_pylist(made, schema=SETTLE_ROUNDS.file_schema())
    lake.append(SETTLE_ROUNDS, rows, lambda _: ())


def _row(facts: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: facts.get(name) for name in SETTLE_ROUNDS.columns if name != DETAIL}
    # All other facts of a round go into the detail column.
    rest = {name: value for name, value in facts.items() if name not in known}
    return {**known, DETAIL: msgspec.json.encode(rest).decode()}
