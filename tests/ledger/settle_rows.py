"""Rows as a settle round gives them to its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.pipeline.settle.rows import SETTLE_COLUMNS
from tests.ledger.shops import GROUP, NOW_MS

BROKER = "127.0.0.1:10911"


def batch(ids: Sequence[str], ledger: str, **changed: Any) -> pa.RecordBatch:
    """Return rows of overdue transactions to look up."""
    values = {
        "broker": BROKER,
        "as_of_ms": NOW_MS,
        "state": 0,
        "checks_sent": 0,
        "due": "look_up",
        "due_unanswered": "wait",
        "park_reason": None,
        "producer_group": GROUP,
        "ledger": ledger,
        "stored_at_ms": NOW_MS - 60_000,
        "allowed_ms": 1_000,
        "age_ms": 60_000,
        "wait_ms": -1,
        "no_ledger": False,
        **changed,
    }
    rows = [
        {**values, "transaction_id": one, "half_offset": number} for number, one in enumerate(ids)
    ]
    numbers = {"half_offset", "as_of_ms", "stored_at_ms", "allowed_ms", "age_ms", "wait_ms"}
    small = {"state", "checks_sent"}
    types = {
        **dict.fromkeys(numbers, pa.int64()),
        **dict.fromkeys(small, pa.int32()),
        "no_ledger": pa.bool_(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in SETTLE_COLUMNS])
    return pa.RecordBatch.from_pylist(rows, schema=schema)
