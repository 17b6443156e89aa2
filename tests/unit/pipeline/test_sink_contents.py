"""The fingerprint of a batch does not depend on the order or partitions of its rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from escrowmq.pipeline.sink.contents import RowSum, content_of

MAP = pa.map_(pa.string(), pa.string())


def said(*batches: pa.RecordBatch, topic: str = "orders") -> str:
    """Return the fingerprint of these batches, with one task for each."""
    sums = []
    for batch in batches:
        one = RowSum(topic)
        one.add(batch)
        sums.append((one.rows, one.total))
    return content_of(sums)


def rows(**columns: Any) -> pa.RecordBatch:  # noqa: ANN401 - columns of any type
    return pa.record_batch(columns)


def tagged(*entries: tuple[str, str]) -> pa.RecordBatch:
    return rows(body=["a"], properties=pa.array([list(entries)], MAP))


def test_neither_the_order_nor_the_partitions_of_rows_count() -> None:
    whole = said(rows(body=["a", "b", "c"], key=["1", "2", "3"]))
    assert whole.startswith("3:")
    assert said(rows(body=["c", "a"], key=["3", "1"]), rows(key=["2"], body=["b"])) == whole
    assert said(rows(body=["a", "b", "c"], key=["1", "2", "3"]), rows(body=[], key=[])) == whole


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (rows(body=["a"]), rows(body=[b"a"])),
        (rows(body=["a"]), rows(body=["a"], key=pa.array([None], pa.string()))),
        (tagged(("x", "1"), ("y", "2")), tagged(("y", "2"), ("x", "1"))),
    ],
)
def test_contents_with_the_same_messages_are_equal(
    one: pa.RecordBatch, other: pa.RecordBatch
) -> None:
    assert said(one) == said(other)


@pytest.mark.parametrize(
    "other",
    [
        rows(body=["b"]),
        rows(body=["a", "a"]),
        rows(body=["a"], key=["k"]),
        rows(body=["a"], tags=["k"]),
        rows(body=["a"], keys=[["x", "y"]]),
        rows(body=pa.array([], pa.string())),
    ],
)
def test_other_rows_are_told_apart(other: pa.RecordBatch) -> None:
    assert said(other) != said(rows(body=["a"]))


def test_the_order_of_keys_and_the_topic_count() -> None:
    assert said(rows(body=["a"], keys=[["x", "y"]])) != said(rows(body=["a"], keys=[["y", "x"]]))
    assert said(rows(body=["a"]), topic="orders") != said(rows(body=["a"]), topic="mails")


def test_rows_that_come_twice_do_not_cancel_each_other() -> None:
    assert said(rows(body=["a", "a"])) != said(rows(body=["b", "b"]))
    assert said() == said(rows(body=pa.array([], pa.string())))


def test_the_time_zone_of_a_session_does_not_count() -> None:
    def born(zone: str, micros: int = 2**62) -> pa.RecordBatch:
        return rows(body=["a"], born_at=pa.array([micros], pa.timestamp("us", tz=zone)))

    assert said(born("UTC")) == said(born("America/St_Johns"))
    assert said(born("UTC")) != said(born("UTC", 5))
