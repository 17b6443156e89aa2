"""Marks: the archive's position and the lake's retention, stored in the tables themselves."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from deltalake import Transaction

from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.marks import (
    begin_marks,
    is_marked,
    kept_from_ms,
    mark_kept_from,
    marked_end,
    moved,
    with_marks,
)
from escrowmq.pipeline.lake.tables import DAY_MS, MESSAGES
from escrowmq.pipeline.lake.upkeep import delete_old
from tests.unit.pipeline.lake_rows import message, rows_of

POSITION = {"broker-a": {"orders": {"0": 5, "1": 0}, "empty": {}}, "broker-b": {}}


def test_a_batch_marks_the_queues_that_it_moves() -> None:
    after = {"broker-a": {"orders": {"0": 5, "1": 2}, "new": {"0": 1}}, "broker-b": {}}
    assert {(one.app_id, one.version) for one in moved(POSITION, after)} == {
        ("escrowmq/archive/end/broker-a/orders/1", 2),
        ("escrowmq/archive/end/broker-a/new/0", 1),
    }


def test_a_log_has_one_mark_for_each_broker() -> None:
    (mark,) = moved({"broker-a": 10, "broker-b": 7}, {"broker-a": 30, "broker-b": 7})
    assert (mark.app_id, mark.version) == ("escrowmq/archive/end/broker-a", 30)


def test_marks_come_with_the_commit_and_survive_the_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    begin_marks(lake, MESSAGES, {})
    marks = moved({}, POSITION)
    lake.append(MESSAGES, rows_of(MESSAGES, message("orders", 0)), with_marks(lambda _: (), marks))
    lake.open(MESSAGES).delete()
    delta = lake.open(MESSAGES)
    assert delta.to_pyarrow_table().num_rows == 0
    assert marked_end(delta, "broker-a", "orders", 0) == 5
    assert marked_end(delta, "broker-a", "orders", 1) == 0
    assert marked_end(delta, "broker-a", "never-seen", 0) == 0


def test_committed_transactions_bring_no_marks(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert not lake.commit(MESSAGES, (), with_marks(lambda _: None, [Transaction("a", 1)]))
    assert lake.open(MESSAGES).transaction_version("a") is None


def test_a_lake_of_an_older_program_is_marked_as_far_as_its_checkpoint_is(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(MESSAGES, rows_of(MESSAGES, message("orders", 0, 3 * DAY_MS + 5)), lambda _: ())
    assert not is_marked(lake.open(MESSAGES))
    begin_marks(lake, MESSAGES, POSITION)
    delta = lake.open(MESSAGES)
    assert is_marked(delta)
    assert marked_end(delta, "broker-a", "orders", 0) == 5
    # The older program's retention left no mark, so rows before the oldest day may be gone.
    assert kept_from_ms(delta) == 3 * DAY_MS
    begin_marks(lake, MESSAGES, {"broker-a": {"orders": {"0": 9}}})
    assert lake.open(MESSAGES).version() == delta.version()


def test_retention_marks_the_first_day_that_it_keeps(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    begin_marks(lake, MESSAGES, {})
    assert kept_from_ms(lake.open(MESSAGES)) == 0
    for day in (1, 5):
        row = message("orders", day, day * DAY_MS)
        lake.append(MESSAGES, rows_of(MESSAGES, row), lambda _: ())
    today = date(1970, 1, 8)
    assert delete_old(lake, MESSAGES, today, 4, is_dry=True) == 1
    assert kept_from_ms(lake.open(MESSAGES)) == 0
    assert delete_old(lake, MESSAGES, today, 4) == 1
    assert kept_from_ms(lake.open(MESSAGES)) == 3 * DAY_MS
    # A longer retention does not move the mark back, because deleted rows do not return.
    mark_kept_from(lake, MESSAGES, date(1970, 1, 2))
    assert kept_from_ms(lake.open(MESSAGES)) == 3 * DAY_MS
