"""Upkeep merges small files, deletes old rows, and keeps the files that a query may still read."""

from __future__ import annotations

import logging
import os
import time
from datetime import date
from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.pipeline.lake import upkeep as lake_upkeep
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import TableFiles
from escrowmq.pipeline.lake.tables import MESSAGES, PROGRESS
from escrowmq.pipeline.lake.upkeep import (
    Upkeep,
    compact,
    delete_old,
    keep_up,
    remove_files,
    to_compact,
)
from tests.unit.logged import event_of
from tests.unit.pipeline.lake_rows import DAY_MS, MIDNIGHT_MS, message, rows_of

HOUR_S = 3_600


def filled(folder: Path, *topics: str, days: int = 1, files: int = 10) -> Lake:
    """Return a lake with `files` files of one row for each topic and day."""
    lake = Lake(folder)
    for number in range(files):
        rows = [
            message(topic, number, MIDNIGHT_MS + day * DAY_MS)
            for topic in topics
            for day in range(days)
        ]
        lake.append(MESSAGES, rows_of(MESSAGES, *rows), lambda _: ())
    return lake


def file_count(lake: Lake) -> int:
    return len(lake.open(MESSAGES).file_uris())


def stored(lake: Lake) -> set[Path]:
    return set(Path(lake.uri_of(MESSAGES)).rglob("*.parquet")) - set(
        Path(lake.uri_of(MESSAGES)).glob("_delta_log/*")
    )


def age(paths: set[Path], hours: float) -> None:
    """Set the modification time of files to this many hours ago."""
    then_s = time.time() - hours * HOUR_S
    for path in paths:
        os.utime(path, (then_s, then_s))


def test_small_files_of_a_partition_become_one(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T", "%DLQ%g")
    assert compact(lake, MESSAGES) == Upkeep(table="messages", files_merged=20, files_made=2)
    assert file_count(lake) == 2
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 20
    # A second run has nothing to merge.
    assert compact(lake, MESSAGES) == Upkeep(table="messages")


def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T", days=2)
    age(stored(lake), hours=48)
    assert to_compact(lake, MESSAGES) == Upkeep(table="messages", files_merged=20)
    assert delete_old(lake, MESSAGES, date(2026, 11, 8), 6, is_dry=True) == 10
    assert file_count(lake) == 20
    delete_old(lake, MESSAGES, date(2026, 11, 8), 6)
    assert remove_files(lake, MESSAGES, kept_hours=1, is_dry=True) == 0
    (Path(lake.uri_of(MESSAGES)) / "left.parquet").write_bytes(b"")
    age({Path(lake.uri_of(MESSAGES)) / "left.parquet"}, hours=48)
    assert remove_files(lake, MESSAGES, is_dry=True) == 1
    assert (Path(lake.uri_of(MESSAGES)) / "left.parquet").exists()
    assert to_compact(Lake(tmp_path / "none"), MESSAGES) == Upkeep(table="messages")


def test_a_partition_with_few_files_is_left_alone(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T", files=lake_upkeep.SMALL_FILES_MIN - 1)
    assert compact(lake, MESSAGES) == Upkeep(table="messages")


def test_those_with_most_files_come_first_and_the_others_next_time(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T")
    for number in range(8):
        lake.append(MESSAGES, rows_of(MESSAGES, message("U", number)), lambda _: ())
    assert compact(lake, MESSAGES, partitions_max=1).files_merged == 10
    assert compact(lake, MESSAGES, partitions_max=1).files_merged == 8


def test_days_before_a_day_are_deleted_whole(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T", "U", days=3, files=2)
    assert delete_old(lake, MESSAGES, date(2026, 11, 10), 7) == 8
    dates = lake.open(MESSAGES).to_pyarrow_table().column("date").to_pylist()
    assert set(dates) == {date(2026, 11, 3)}
    assert delete_old(lake, MESSAGES, date(2026, 11, 10), 7) == 0


def test_files_that_are_in_no_table_go_when_they_are_old(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T")
    # File 100 is from a failed attempt. File 101 is still being written.
    for number in (100, 101):
        files = TableFiles(MESSAGES, lake.uri_of(MESSAGES), {})
        files.add(rows_of(MESSAGES, message("T", number)))
        (file,) = files.finish()
        path = Path(lake.uri_of(MESSAGES)) / file.path
        age({path}, hours=30 if number == 100 else 0.1)
    assert remove_files(lake, MESSAGES, kept_hours=24) == 1
    assert len(stored(lake)) == 11
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 10


def test_files_that_a_query_may_still_read_stay(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T")
    before = lake.open(MESSAGES)
    age(stored(lake), hours=48)
    compact(lake, MESSAGES)
    # The files are old, but the table contained them until just now.
    remove_files(lake, MESSAGES, kept_hours=24)
    assert before.to_pyarrow_table().num_rows == 10


def test_a_horizon_that_is_too_near_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused) as caught:
        remove_files(Lake(tmp_path), MESSAGES, kept_hours=0)
    assert caught.value.code == "bad_option"
    assert caught.value.fields == {"option": "keep-hours", "value": "0"}


def test_all_tables_are_kept_up_whether_they_are_there_or_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = filled(tmp_path, "T", days=2)
    with caplog.at_level(logging.INFO, "escrowmq"):
        done = keep_up(lake, today=date(2026, 11, 8), retention_days=6)
    # Files that retention deletes are not merged first.
    assert (done.files_deleted, done.files_merged, done.files_made) == (10, 10, 1)
    assert lake.find(PROGRESS) is None
    told = [vars(record) for record in caplog.records if event_of(record) == "table_kept_up"]
    assert [(one["table"], one["files_deleted"]) for one in told] == [("messages", 10)]


def test_a_table_that_cannot_be_read_does_not_keep_the_others_from_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(10):
        row = {"seen_at_ms": MIDNIGHT_MS, "queue_id": 0, "offset_after": number}
        lake.append(PROGRESS, rows_of(PROGRESS, row), lambda _: ())
    Path(lake.uri_of(MESSAGES)).write_text("a file")
    with pytest.raises(Unavailable) as caught:
        keep_up(lake, today=date(2026, 11, 8))
    assert caught.value.fields["table"] == "messages"
    assert len(lake.open(PROGRESS).file_uris()) == 1


def test_without_retention_nothing_is_deleted(tmp_path: Path) -> None:
    lake = filled(tmp_path, "T")
    keep_up(lake, today=date(2099, 1, 1))
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 10
