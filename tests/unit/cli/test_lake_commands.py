"""The ``escrowmq lake`` commands that need no Spark, on a real lake."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from escrowmq.cli.main import main
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import TableFiles
from escrowmq.pipeline.lake.tables import MESSAGES
from tests.unit.pipeline.lake_rows import DAY_MS, MIDNIGHT_MS, message, rows_of


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data directory whose lake has ten messages from two days."""
    lake = Lake(tmp_path / "lake")
    for number in range(10):
        at_ms = MIDNIGHT_MS + (number % 2) * DAY_MS
        lake.append(MESSAGES, rows_of(MESSAGES, message("T", number, at_ms)), lambda _: ())
    return tmp_path


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["lake", *(str(argument) for argument in arguments)])
    return stopped.value.code


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return rows


def test_tables_says_what_is_in_the_lake(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tables", "--data-dir", data, "-o", "json") == 0
    messages, *others = printed(capsys)
    assert messages.pop("bytes") > 1_000  # type: ignore[operator]  # a number
    assert messages == {
        "table": "messages",
        "rows": 10,
        "files": 10,
        "first_day": "2026-11-01",
        "last_day": "2026-11-02",
        "version": 10,
    }
    assert {one["rows"] for one in others} == {0}
    assert {one["version"] for one in others} == {None}


def test_a_lake_elsewhere_is_named_by_its_uri(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("tables", "--lake", data / "lake") == 0
    assert "messages       10    10" in capsys.readouterr().out


def test_without_a_place_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tables") == 2
    assert "pipeline.lake_uri" in capsys.readouterr().err


def test_a_directory_that_is_not_there_is_refused_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "misspelled"
    for command in (("tables",), ("query", "SELECT 1")):
        assert run(*command, "--data-dir", missing) == 2
        assert capsys.readouterr().err.startswith("escrowmq: lake_missing: there is no such")
    assert not missing.exists()


def test_a_place_without_a_lake_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tables", "--data-dir", tmp_path) == 0
    assert f"there is no lake at {tmp_path / 'lake'}" in capsys.readouterr().err
    Lake(tmp_path / "lake").open(MESSAGES)
    assert run("tables", "--data-dir", tmp_path) == 0
    assert capsys.readouterr().err == ""


def test_compact_merges_small_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(data / "lake")
    for number in range(10, 16):
        lake.append(MESSAGES, rows_of(MESSAGES, message("T", number)), lambda _: ())
    assert run("compact", "--data-dir", data, "--table", "messages", "-o", "json") == 0
    assert printed(capsys) == [{"table": "messages", "files_merged": 11, "files_made": 1}]
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 16


def test_vacuum_deletes_old_days_and_removes_what_is_in_no_table(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = Lake(data / "lake")
    files = TableFiles(MESSAGES, lake.uri_of(MESSAGES), {})
    files.add(rows_of(MESSAGES, message("T", 99)))
    (orphan,) = files.finish()
    then_s = time.time() - 48 * 3_600
    os.utime(Path(lake.uri_of(MESSAGES)) / orphan.path, (then_s, then_s))
    ago = time.time_ns() // 1_000_000 // DAY_MS - MIDNIGHT_MS // DAY_MS
    arguments = ("--data-dir", data, "--table", "messages", "--keep-days", ago - 1, "-o", "json")
    assert run("vacuum", *arguments) == 0
    assert printed(capsys) == [{"table": "messages", "files_deleted": 5, "files_removed": 1}]
    assert lake.open(MESSAGES).to_pyarrow_table().num_rows == 5


def test_a_table_that_does_not_exist_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compact", "--data-dir", data, "--table", "message") == 2
    assert capsys.readouterr().err.startswith("escrowmq: no_such_table: there are messages")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_a_time_that_is_none_is_refused(
    data: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"--from": "2026-11-01", "--to": "2026-11-02T00:00:00Z", option: "yesterday"}
    given = [part for pair in times.items() for part in pair]
    assert run("replay", "--topic", "T", "--into", "U", *given, "--data-dir", data) == 2
    assert f"option='{option}', value='yesterday'" in capsys.readouterr().err
