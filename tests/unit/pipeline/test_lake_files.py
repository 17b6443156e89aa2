"""Files that a task writes: their contents, their paths, and how much the task buffers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from escrowmq.pipeline.lake import files as lake_files
from escrowmq.pipeline.lake.files import TableFiles, WrittenFile
from escrowmq.pipeline.lake.tables import MESSAGES, PROGRESS
from tests.unit.pipeline.lake_rows import DAY_MS, MIDNIGHT_MS, message, rows_of

if TYPE_CHECKING:
    import pytest


def read(folder: Path, file: WrittenFile) -> pa.Table:
    # Given the path, pyarrow would read columns from the directory names.
    return pq.read_table(pa.BufferReader((folder / file.path).read_bytes()))


def offsets(folder: Path, file: WrittenFile) -> list[int]:
    found: list[int] = read(folder, file).column("queue_offset").to_pylist()
    return found


def test_each_partition_gets_a_file_with_its_rows_in_their_order(tmp_path: Path) -> None:
    files = TableFiles(MESSAGES, str(tmp_path), {})
    files.add(
        rows_of(
            MESSAGES,
            message("T", 7, MIDNIGHT_MS - 1),
            message("U", 1),
            message("T", 8),
            message("U", 2),
            message("T", 9, MIDNIGHT_MS + DAY_MS - 1),
        )
    )
    files.add(rows_of(MESSAGES, message("T", 10, MIDNIGHT_MS + 5)))
    written = {file.partition: file for file in files.finish()}

    # The day changes at midnight UTC, whatever the local time zone is.
    found = {partition: offsets(tmp_path, file) for partition, file in written.items()}
    assert found == {
        '{"topic": "T", "date": "2026-10-31"}': [7],
        '{"topic": "T", "date": "2026-11-01"}': [8, 9, 10],
        '{"topic": "U", "date": "2026-11-01"}': [1, 2],
    }
    file = written['{"topic": "T", "date": "2026-11-01"}']
    assert Path(file.path).parent == Path("topic=T/date=2026-11-01")
    assert file.size_bytes == (tmp_path / file.path).stat().st_size
    assert file.row_count == 3
    assert (file.oldest_at_ms, file.newest_at_ms) == (MIDNIGHT_MS, MIDNIGHT_MS + DAY_MS - 1)
    assert read(tmp_path, file).schema.names == MESSAGES.file_schema().names


def test_statistics_say_what_ranges_a_file_has(tmp_path: Path) -> None:
    files = TableFiles(PROGRESS, str(tmp_path), {})
    row = {"seen_at_ms": MIDNIGHT_MS, "queue_id": 3}
    files.add(rows_of(PROGRESS, {**row, "offset_after": 7}, {**row, "offset_after": 5}))
    (file,) = files.finish()
    assert json.loads(file.stats) == {
        "numRecords": 2,
        "minValues": {"queue_id": 3, "offset_after": 5, "seen_at_ms": MIDNIGHT_MS},
        "maxValues": {"queue_id": 3, "offset_after": 7, "seen_at_ms": MIDNIGHT_MS},
        "nullCount": {"queue_id": 0, "offset_after": 0, "seen_at_ms": 0},
    }


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    files = TableFiles(MESSAGES, str(tmp_path), {})
    files.add(rows_of(MESSAGES))
    assert files.finish() == []
    assert list(tmp_path.iterdir()) == []


def test_a_task_keeps_no_more_than_its_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "BUFFER_BYTES_MAX", 10_000)
    files = TableFiles(MESSAGES, str(tmp_path), {})
    for number in range(100):
        files.add(rows_of(MESSAGES, message("T", number, body=bytes(1_000))))
        assert files._waiting_bytes <= 10_000
    (file,) = files.finish()
    assert offsets(tmp_path, file) == list(range(100))
    assert pq.read_metadata(str(tmp_path / file.path)).num_row_groups > 5


def test_more_partitions_than_files_may_be_open_make_more_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "BUFFER_BYTES_MAX", 0)
    monkeypatch.setattr(lake_files, "OPEN_FILES_MAX", 2)
    files = TableFiles(MESSAGES, str(tmp_path), {})
    for turn in range(2):
        for topic in ("T", "U", "V"):
            files.add(rows_of(MESSAGES, message(topic, turn)))
            assert len(files._open) <= 2
    written = files.finish()
    assert len(written) == 6
    assert sum(file.row_count for file in written) == 6


def test_a_large_file_is_closed_and_another_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_files, "BUFFER_BYTES_MAX", 0)
    monkeypatch.setattr(lake_files, "FILE_BYTES_MAX", 1)
    files = TableFiles(MESSAGES, str(tmp_path), {})
    files.add(rows_of(MESSAGES, message("T", 0)))
    files.add(rows_of(MESSAGES, message("T", 1)))
    assert [offsets(tmp_path, file) for file in files.finish()] == [[0], [1]]
