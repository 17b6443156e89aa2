"""The number of open queue files is limited."""

from __future__ import annotations

import pytest

from escrowmq.store.queue.queue_files import OPEN_FILES_MAX, OpenFiles
from escrowmq.testing.faulty_disk import FaultyDisk


def test_only_so_many_files_stay_open() -> None:
    disk = FaultyDisk()
    disk.make_directory("many")
    files = OpenFiles(disk)
    for number in range(OPEN_FILES_MAX + 1):
        disk.open(f"many/{number}", create=True)
    first, second = files.get("many/0"), files.get("many/1")
    for number in range(2, OPEN_FILES_MAX):
        files.get(f"many/{number}")
    # The first was used again, so the second is now the oldest.
    assert files.get("many/0") is first
    files.get(f"many/{OPEN_FILES_MAX}")
    assert first.size() == 0
    with pytest.raises(OSError, match="Bad file"):
        second.size()


def test_files_that_are_forgotten_or_closed_are_given_back() -> None:
    disk = FaultyDisk()
    disk.make_directory("many")
    files = OpenFiles(disk)
    handles = []
    for name in ("many/a", "many/b"):
        disk.open(name, create=True)
        handles.append(files.get(name))
    for file in files.release(["many/a", "many/c"]):
        file.close()
    files.close()
    for handle in handles:
        with pytest.raises(OSError, match="Bad file"):
            handle.size()
