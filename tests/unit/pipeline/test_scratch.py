from __future__ import annotations

import tempfile
from pathlib import Path

from escrowmq.pipeline.spark.scratch import scratch_in

#: Above the highest process id of Linux.
DEAD = str(2**22 + 1)


def test_temporary_files_of_a_process_go_with_its_directory(tmp_path: Path) -> None:
    before = tempfile.gettempdir()
    with scratch_in(tmp_path) as scratch:
        made = Path(tempfile.mkdtemp())
        assert made.parent == scratch
    assert not made.exists()
    assert tempfile.gettempdir() == before


def test_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "scratch" / DEAD / "tmpabc"
    left.mkdir(parents=True)
    with scratch_in(tmp_path):
        assert not left.parent.exists()
