"""The view of transactions: one row each, the same from Spark and from DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.sql import SUMMARY, SUMMARY_SQL, register
from escrowmq.pipeline.lake.tables import PROGRESS, TABLES, TRANSACTIONS
from tests.unit.pipeline.lake_rows import MIDNIGHT_MS, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]


def with_spark(spark: SparkSession, lake: Lake) -> Rows:
    register(spark, lake)
    return [row.asDict() for row in spark.sql(f"SELECT * FROM {SUMMARY} ORDER BY head").collect()]


def with_duckdb(_: SparkSession, lake: Lake) -> Rows:
    with duckdb.connect() as connection:
        for table in TABLES.values():
            connection.register(table.name, lake.open(table).to_pyarrow_dataset())
        found = connection.sql(f"SELECT * FROM ({SUMMARY_SQL}) ORDER BY head")
        return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


READERS = [with_spark, with_duckdb]


def event(name: str, head: int | None, at: int, **rest: Any) -> dict[str, Any]:  # noqa: ANN401 -- columns are of all types
    place = {"broker": "b", "event": name, "head": head, "at_ms": MIDNIGHT_MS + at}
    return {**place, "log_offset": at, **rest}


def held(head: int, at: int, transaction_id: str, count: int = 1) -> dict[str, Any]:
    origin = {"transaction_id": transaction_id, "producer_group": "shop", "ledger": ""}
    return event("held", head, at, first=head, message_count=count, **origin)


def seen(group: str, queue_id: int, before: int | None, after: int, at: int) -> dict[str, Any]:
    return {
        "broker": "b",
        "consumer_group": group,
        "topic": "orders",
        "queue_id": queue_id,
        "offset_before": before,
        "offset_after": after,
        "seen_at_ms": MIDNIGHT_MS + at,
    }


def visible(head: int | None, at: int, queue_id: int, offset: int, count: int) -> dict[str, Any]:
    place = {"topic": "orders", "queue_id": queue_id, "queue_offset": offset}
    return event("visible", head, at, message_count=count, **place)


BATCH = {"app_id": "nightly", "batch_id": "7"}

EVENTS = (
    # Committed by its producer; two messages in each of two queues.
    held(0, 1, "t-0", count=4),
    event("committed", 0, 2, first=0, message_count=4, by="client-1"),
    visible(0, 2, queue_id=0, offset=10, count=2),
    visible(0, 2, queue_id=1, offset=20, count=2),
    # Back-checked twice, then rolled back.
    held(4, 3, "t-4"),
    event("asked", 4, 4, checks_sent=1, by="client-1"),
    event("answered", 4, 5, checks_sent=1, by="client-1"),
    event("asked", 4, 6, checks_sent=2, by="client-2"),
    event("rolled_back", 4, 7, first=4, message_count=1, by="settle"),
    # Parked; parked and resumed; parked, resumed and parked again.
    held(5, 8, "t-5"),
    event("parked", 5, 9, detail="checks_exhausted"),
    held(6, 10, "t-6"),
    event("parked", 6, 11, detail="checks_exhausted"),
    event("resumed", 6, 12, by="ann"),
    held(7, 13, "t-7"),
    event("parked", 7, 14, detail="checks_exhausted"),
    event("resumed", 7, 15, by="ann"),
    event("parked", 7, 16, detail="checks_exhausted"),
    # Two transactions of a sink batch: the record does not map messages to offsets.
    held(8, 17, "t-8", count=60),
    held(68, 18, "t-68", count=40),
    event("committed", 8, 19, first=8, message_count=60, by="sink", **BATCH),
    event("committed", 68, 19, first=68, message_count=40, by="sink", **BATCH),
    {**visible(None, 19, queue_id=0, offset=12, count=100), **BATCH},
    # Two delayed messages, which became visible one after the other.
    held(108, 20, "t-108", count=2),
    event("committed", 108, 21, first=108, message_count=2, by="client-1"),
    {**visible(None, 25, queue_id=2, offset=0, count=1), "first": 109},
    {**visible(None, 24, queue_id=2, offset=1, count=1), "first": 108},
)

LOOKS = (
    # Past the first queue's messages at once, past the second's later.
    seen("billing", 0, None, 12, at=30),
    seen("billing", 1, 0, 21, at=30),
    seen("billing", 1, 21, 22, at=40),
    # Set back, and past them again: the first time counts.
    seen("billing", 1, 22, 0, at=50),
    seen("billing", 1, 0, 30, at=60),
    # Past the transaction's messages in only one of its queues.
    seen("slow", 0, 0, 112, at=30),
    seen("slow", 1, None, 20, at=30),
    # Not there yet.
    seen("audit", 0, 0, 11, at=30),
    # A group that reads another topic.
    {**seen("other", 0, 0, 99, at=30), "topic": "invoices"},
)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.append(TRANSACTIONS, rows_of(TRANSACTIONS, *EVENTS), lambda _: ())
    lake.append(PROGRESS, rows_of(PROGRESS, *LOOKS), lambda _: ())
    return lake


@pytest.mark.parametrize("reader", READERS)
def test_each_transaction_is_one_row_with_its_life_line(
    spark: SparkSession, lake: Lake, reader: Callable[[SparkSession, Lake], Rows]
) -> None:
    rows = reader(spark, lake)
    assert [(row["head"], row["state"]) for row in rows] == [
        (0, "committed"),
        (4, "rolled_back"),
        (5, "parked"),
        (6, "prepared"),
        (7, "parked"),
        (8, "committed"),
        (68, "committed"),
        (108, "committed"),
    ]
    committed, rolled_back, *_ = rows
    assert committed == {
        "broker": "b",
        "head": 0,
        "transaction_id": "t-0",
        "producer_group": "shop",
        "ledger": "",
        "state": "committed",
        "message_count": 4,
        "held_at_ms": MIDNIGHT_MS + 1,
        "checks_asked": 0,
        "asked_at_ms": None,
        "checks_answered": 0,
        "answered_at_ms": None,
        "decided_by": "client-1",
        "decided_at_ms": MIDNIGHT_MS + 2,
        "visible_at_ms": MIDNIGHT_MS + 2,
        "consumed_at_ms": MIDNIGHT_MS + 40,
        "consumed_by": f"billing {MIDNIGHT_MS + 40}",
    }
    assert (rolled_back["checks_asked"], rolled_back["asked_at_ms"]) == (2, MIDNIGHT_MS + 6)
    assert (rolled_back["checks_answered"], rolled_back["answered_at_ms"]) == (1, MIDNIGHT_MS + 5)
    assert rolled_back["decided_by"] == "settle"
    assert rolled_back["visible_at_ms"] is None
    assert rolled_back["consumed_by"] is None
    # A batch becomes visible at once; a group has consumed it when it is past the whole batch.
    for batched in rows[5:7]:
        assert batched["visible_at_ms"] == MIDNIGHT_MS + 19
        assert batched["consumed_by"] == f"slow {MIDNIGHT_MS + 30}"
    assert rows[7]["visible_at_ms"] == MIDNIGHT_MS + 24
    assert rows[7]["consumed_by"] is None


def test_all_tables_are_there_in_sql(spark: SparkSession, lake: Lake) -> None:
    register(spark, lake)
    for name in TABLES:
        assert spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0] >= 0
    # A second registration shows the current state.
    lake.append(PROGRESS, rows_of(PROGRESS, seen("late", 0, None, 1, at=99)), lambda _: ())
    register(spark, lake)
    assert spark.sql("SELECT 1 FROM progress WHERE consumer_group = 'late'").count() == 1
