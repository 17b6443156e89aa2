"""Copies of ``meta.db``, made in a thread while the broker keeps using the file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from escrowmq.model.errors import Unavailable
from escrowmq.store.meta import sqlite_file
from escrowmq.store.meta.meta import Meta


@pytest.fixture
def meta(tmp_path: Path) -> Meta:
    made = Meta(tmp_path / "meta.db")
    for number in range(3_000):
        made.set_offset("g" * 200, f"topic-{number}", 0, number)
    made.flush()
    return made


class Halfway:
    """Events that stop a copy between two of its steps."""

    def __init__(self) -> None:
        self.reached, self.go_on = Event(), Event()


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> Halfway:
    found = Halfway()
    goes_on = sqlite_file.MetaFile._refuse_if_closing

    def waits(file: sqlite_file.MetaFile, *states: int) -> None:
        found.reached.set()
        assert found.go_on.wait(20)
        goes_on(file, *states)

    monkeypatch.setattr(sqlite_file, "COPIED_PAGES", 8)
    monkeypatch.setattr(sqlite_file.MetaFile, "_refuse_if_closing", waits)
    return found


def test_the_file_is_written_while_it_is_copied(meta: Meta, halfway: Halfway) -> None:
    with ThreadPoolExecutor() as threads:
        copying = threads.submit(meta.copy_file)
        assert halfway.reached.wait(20)
        # The write returns although the copy is stopped.
        meta.set_offset("meanwhile", "topic", 0, 1)
        meta.flush()
        halfway.go_on.set()
        with closing(Meta(copying.result())) as copied:
            assert len(copied.offsets) == 3_001
            assert copied.offsets["meanwhile", "topic", 0] == 1
    meta.close()


def test_a_copy_under_way_ends_when_the_file_is_closed(meta: Meta, halfway: Halfway) -> None:
    with ThreadPoolExecutor() as threads:
        copying = threads.submit(meta.copy_file)
        assert halfway.reached.wait(20)
        closing_it = threads.submit(meta.close)
        while not meta._file._is_closing:
            pass
        halfway.go_on.set()
        with pytest.raises(Unavailable, match="stopping"):
            copying.result()
        closing_it.result()
