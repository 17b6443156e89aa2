"""Times become timestamps, and the lake's columns keep their names and types."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from escrowmq.pipeline.lake.tables import TABLES
from escrowmq.pipeline.source.column_types import TIMESTAMP_MS_MAX, timestamps
from escrowmq.pipeline.source.message_columns import TYPES
from escrowmq.pipeline.views.columns import view_columns
from escrowmq.pipeline.views.options import VIEWS
from escrowmq.protocol.native.rows import NO_CHECK_MS, TransactionRow
from tests.unit.repository import ROOT

#: Tables that release 0.1.0 wrote. Columns may be added, but existing lakes need these as is.
KEPT = {
    "messages": "broker string, topic string, queue_id int, queue_offset bigint, log_offset bigint,"
    " message_id string, unique_key string, keys string, tags string, body binary,"
    " properties map<string,string>, flag int, born_at_ms bigint, stored_at_ms bigint,"
    " visible_at_ms bigint, reconsume_times int, transaction_id string, date date",
    "transactions": "broker string, log_offset bigint, at_ms bigint, event string, head bigint,"
    " first bigint, message_count bigint, transaction_id string, producer_group string,"
    " ledger string, number bigint, checks_sent int, by string, detail string, topic string,"
    " queue_id int, queue_offset bigint, app_id string, batch_id string, date date",
    "progress": "broker string, consumer_group string, topic string, queue_id int,"
    " offset_before bigint, offset_after bigint, seen_at_ms bigint, date date",
    "settle_rounds": "started_at_ms bigint, took_ms bigint, brokers bigint, seen bigint,"
    " waiting bigint, asked bigint, committed bigint, rolled_back bigint, parked bigint,"
    " no_producer bigint, detail string, date date",
    "quarantine": "broker string, topic string, queue_id int, queue_offset bigint,"
    " log_offset bigint, message_id string, unique_key string, keys string, tags string,"
    " body binary, properties map<string,string>, flag int, born_at_ms bigint,"
    " stored_at_ms bigint, visible_at_ms bigint, reconsume_times int, transaction_id string,"
    " body_bytes bigint, sys_flag int, problem string, archive_id bigint, batch bigint, date date",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_the_lake_keep_their_columns(name: str) -> None:
    assert TABLES[name].ddl().replace("`", "") == KEPT[name]


@pytest.mark.parametrize("at_ms", [0, -1, 1_700_000_000_123, TIMESTAMP_MS_MAX, -TIMESTAMP_MS_MAX])
def test_a_timestamp_is_the_instant_in_microseconds(at_ms: int) -> None:
    made = timestamps(pa.array([at_ms, None], pa.int64()))
    assert made.type == pa.timestamp("us", tz="UTC")
    assert made.cast(pa.int64()).to_pylist() == [at_ms * 1_000, None]
    # Python and pandas can both represent it.
    assert made.to_pylist()[0].tzinfo is not None
    assert made.to_pandas()[0].value == at_ms * 1_000_000


@pytest.mark.parametrize(
    "at_ms", [TIMESTAMP_MS_MAX + 1, -TIMESTAMP_MS_MAX - 1, 2**63 - 1, -(2**63)]
)
def test_an_instant_that_pandas_cannot_hold_is_null(at_ms: int) -> None:
    assert timestamps(pa.array([at_ms, 0], pa.int64())).to_pylist() == [
        None,
        datetime(1970, 1, 1, tzinfo=UTC),
    ]


def test_no_instants_are_no_timestamps() -> None:
    assert timestamps(pa.array([], pa.int64())).to_pylist() == []
    assert timestamps(pa.array([None], pa.int64())).to_pylist() == [None]


def test_every_number_in_a_view_has_one_source_and_its_word_the_same() -> None:
    columns = {column.name: column for column in view_columns(TransactionRow)}
    assert columns["state"].field == columns["state_code"].field
    assert columns["stored_at"].field == columns["stored_at_ms"].field
    codes = pa.array([3, 0, 9, 0], pa.int32())
    assert columns["state"].make(codes).to_pylist() == ["parked", "prepared", "state_9", "prepared"]
    waits = pa.array([-5, NO_CHECK_MS - 1, NO_CHECK_MS, 9_223_370_241_915_937_919], pa.int64())
    assert columns["wait_ms"].make(waits).to_pylist() == [-5, NO_CHECK_MS - 1, None, None]


def test_no_view_has_a_number_for_an_instant_unless_it_is_named() -> None:
    durations = {"age_ms", "allowed_ms", "took_ms", "wait_ms"}
    for view in VIEWS.values():
        shown = {name for name, column in view.columns.items() if column.is_default}
        assert {name for name in shown if name.endswith("_ms")} <= durations


def test_the_reference_tells_every_column() -> None:
    page = (ROOT / "docs/reference/spark.md").read_text(encoding="utf-8")
    for name, kind in TYPES.items():
        told = "map of strings" if kind.startswith("map") else kind
        lines = [line for line in page.splitlines() if f"`{name}`" in line.split(" | ")[0]]
        assert any(line.split(" | ")[1] == told for line in lines), name
    changed = {
        name
        for view in VIEWS.values()
        for name, column in view.columns.items()
        if column.name not in view.rows.__struct_fields__ or not column.is_default
    }
    assert [name for name in changed if f"`{name}`" not in page] == []
