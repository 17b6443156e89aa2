"""Rows of Spark 4.0's stream writer, combined into Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pytest

from escrowmq.pipeline.sink import row_batches
from escrowmq.pipeline.sink.row_batches import as_batches

SCHEMA = pa.schema(
    {
        "body": pa.binary(),
        "keys": pa.list_(pa.string()),
        "properties": pa.map_(pa.string(), pa.string()),
        "queue_id": pa.int32(),
    }
)


def rows(*bodies: bytes | None) -> list[tuple[Any, ...]]:
    return [(body and bytearray(body), ["k"], {"a": "b"}, 0) for body in bodies]


def test_rows_become_batches_of_the_schema() -> None:
    batches = list(as_batches(iter(rows(b"1", b"2", b"3")), SCHEMA, rows_max=2))
    assert [batch.num_rows for batch in batches] == [2, 1]
    assert batches[0].schema == SCHEMA
    assert batches[1].to_pylist() == [
        {"body": b"3", "keys": ["k"], "properties": [("a", "b")], "queue_id": 0}
    ]


def test_a_missing_value_stays_missing() -> None:
    (batch,) = as_batches(iter([(None, None, None, None)]), SCHEMA, rows_max=2)
    assert batch.to_pylist() == [dict.fromkeys(SCHEMA.names)]


def test_large_bodies_end_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batches, "BATCH_BYTES_MAX", 10)
    batches = as_batches(iter(rows(b"x" * 9, b"x" * 9, b"x", None)), SCHEMA, rows_max=100)
    assert [batch.num_rows for batch in batches] == [2, 2]


def test_batches_are_passed_on_as_they_are() -> None:
    given = [pa.record_batch({"body": [b"1"]}), pa.record_batch({"body": [b"2"]})]
    assert list(as_batches(iter(given), SCHEMA, rows_max=1)) == given
    assert list(as_batches(iter([]), SCHEMA, rows_max=1)) == []


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the local time zone of this process to New York."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
@pytest.mark.parametrize(
    ("local", "instant"),
    [
        (datetime(2026, 11, 16, 7), datetime(2026, 11, 16, 12, tzinfo=UTC)),  # noqa: DTZ001 - local
        # The clock shows 01:30 twice on this day; the second time is standard time.
        (datetime(2026, 11, 1, 1, 30), datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2026, 11, 1, 1, 30, fold=1), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)),  # noqa: DTZ001
        (datetime(2026, 11, 16, 12, tzinfo=UTC), datetime(2026, 11, 16, 12, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_local_time_becomes_its_instant(local: datetime | None, instant: datetime | None) -> None:
    schema = pa.schema({"body": pa.binary(), "born_at": pa.timestamp("us", tz="UTC")})
    (batch,) = as_batches(iter([(b"1", local)]), schema, rows_max=1)
    assert batch["born_at"].to_pylist() == [instant]


@pytest.mark.usefixtures("new_york")
def test_a_time_without_a_zone_stays_as_it_is() -> None:
    schema = pa.schema({"body": pa.binary(), "at": pa.timestamp("us")})
    noon = datetime(2026, 11, 16, 12)  # noqa: DTZ001 - TIMESTAMP_NTZ
    (batch,) = as_batches(iter([(b"1", noon)]), schema, rows_max=1)
    assert batch["at"].to_pylist() == [noon]
