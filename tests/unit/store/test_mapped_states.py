"""Mapped files: fixed records in place, made again from the log whenever they cannot be trusted."""

from __future__ import annotations

import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np
import pytest

from escrowmq.model.errors import StoreCorrupt, StoreUnusable
from escrowmq.store.disk.disk import OsDisk, write_whole
from escrowmq.store.disk.rows import Rows
from escrowmq.store.mapped.mapped_states import MappedStates
from escrowmq.store.mapped.records import CHECKS, RECORD
from escrowmq.store.states.follower import Follower
from escrowmq.store.states.state_rows import with_filed
from escrowmq.transaction.state_store import StatePosition, StatesLostTrack, rows_of
from tests.unit.store.helpers import HOUR, Driver, faulty
from tests.unit.store.state_stores import driver_of, follower_of, must_agree

FIRST = "mapped/00000000000000000000"
SECOND = "mapped/00000000000000000008"


def filled(folder: Path, count: int = 20) -> Driver:
    driver = driver_of("mapped", folder)
    for number in range(count):
        driver.hold(f"t{number}")
    return driver


def files(driver: Driver) -> list[str]:
    return [name for name in driver.disk.list("mapped") if name.isdecimal()]


def records(driver: Driver, path: str = FIRST) -> np.ndarray:
    """Return the records of a file after a clean stop."""
    return np.frombuffer(faulty(driver).snapshot()[path], dtype=RECORD)


def test_a_record_has_the_fields_of_rocketmq_in_28_bytes(tmp_path: Path) -> None:
    driver = filled(tmp_path, 3)
    driver.commit(1)
    driver.roll_back(2)
    half = driver.half(0)
    driver.store.close()
    found = records(driver)
    assert RECORD.itemsize == 28
    assert sum(RECORD[name].itemsize for name in RECORD.names or () if name != "check") == 24
    assert found["state"].tolist() == [4, 8, 12, 0, 0, 0, 0, 0]
    assert (found["log_offset"][0], found["size"][0]) == (half.log_offset, half.size)
    assert found["stored_at_s"][0] == half.stored_at_ms // 1_000
    assert len(set(found["group_hash"][:3])) == 1


def test_a_file_goes_when_all_its_records_are_decided(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    assert files(driver) == [f"{base:020d}" for base in (0, 8, 16)]
    for row in (*range(1, 8), *range(8, 15)):
        driver.commit(row)
    assert len(files(driver)) == 3
    driver.commit(0)
    assert files(driver) == [f"{base:020d}" for base in (8, 16)]
    driver = driver.closed_and_opened()
    assert files(driver) == [f"{base:020d}" for base in (8, 16)]
    assert must_agree(driver) == [15, 16, 17, 18, 19]


def test_files_that_were_deleted_are_made_again_equal(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    for row in range(0, 20, 3):
        driver.commit(row)
    driver.store.close()
    disk = faulty(driver)
    before = {path: data for path, data in disk.snapshot().items() if path.startswith("mapped/0")}
    for path in before:
        disk.remove(path)
    disk.remove("mapped/position")
    driver = driver.opened_again()
    must_agree(driver)
    driver.store.close()
    after = {path: data for path, data in disk.snapshot().items() if path.startswith("mapped/0")}
    assert after == before


@pytest.mark.parametrize("kind", [RECORD, CHECKS], ids=["record", "sidecar"])
def test_a_torn_record_is_repaired_from_the_log(
    kind: np.dtype[np.void], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    driver.store.close()
    path = FIRST if kind is RECORD else f"{FIRST}.checks"
    faulty(driver).flip_bit(path, 3 * kind.itemsize, 0)
    driver = driver.opened_again()
    states = follower_of(driver).states
    assert isinstance(states, MappedStates)
    assert states.torn == 1
    assert "state_records_torn" in caplog.text
    assert must_agree(driver) == list(range(20))


@pytest.mark.parametrize("position", [b"", b"00000000 {}", None])
def test_without_an_intact_position_all_files_are_made_again(
    position: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = filled(tmp_path)
    driver.store.close()
    disk = faulty(driver)
    disk.remove("mapped/position")
    if position is not None:
        disk.open("mapped/position", create=True).write_at(0, position)
    driver = driver.opened_again()
    assert must_agree(driver) == list(range(20))
    assert follower_of(driver).caught_up >= 20
    assert "state_store_caught_up" in caplog.text


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    driver = filled(tmp_path, 1)
    driver.store.close()
    driver.disk.open("mapped/notes.txt", create=True).close()
    with pytest.raises(StoreUnusable, match=r"notes\.txt"):
        driver.opened_again()


def hold_without_room(driver: Driver) -> Follower:
    """Hold a half message that needs a file, for which there is no room."""
    store, disk = driver.store, faulty(driver)
    follower, store.follower = follower_of(driver), None
    driver.hold("new")
    store.follower, disk.capacity_bytes = follower, disk._used_bytes() + 100
    follower.follow_all()
    return follower


def test_a_full_disk_keeps_it_away_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path, 8)
    disk, follower = faulty(driver), hold_without_room(driver)
    assert (follower.state, follower.lag_rows) == ("away", 0)
    assert "state_store_away" in caplog.text
    # It is said once.
    follower.follow_all()
    assert caplog.text.count("state_store_away store=") == 1
    disk.capacity_bytes = None
    follower.follow_all()
    assert must_agree(driver) == list(range(9))
    assert "state_store_back" in caplog.text


def test_a_failing_disk_is_not_called_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path, 8)
    disk = faulty(driver)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "allocate", fail)
        assert hold_without_room(driver).state == "away"
    assert "its files cannot be written" in caplog.text
    assert "no room" not in caplog.text


def test_a_stop_while_it_is_away_leaves_no_position(tmp_path: Path) -> None:
    driver = filled(tmp_path, 8)
    disk, follower = faulty(driver), hold_without_room(driver)
    disk.capacity_bytes = None
    follower.close()
    assert not disk.exists("mapped/position")
    driver.store.follower = None
    driver.store.close()
    assert must_agree(driver.opened_again()) == list(range(9))


def test_a_start_without_room_for_its_files_serves_and_catches_up(tmp_path: Path) -> None:
    driver = filled(tmp_path, 8)
    driver.store.close()
    disk = faulty(driver)
    for name in disk.list("mapped"):
        disk.remove(f"mapped/{name}")
    disk.capacity_bytes = disk._used_bytes() + 100
    driver = driver.opened_again()
    assert follower_of(driver).state == "away"
    disk.capacity_bytes = None
    follower_of(driver).follow_all()
    assert must_agree(driver) == list(range(8))


def led(driver: Driver) -> Follower:
    """Let the follower work as in a broker that serves: each piece in another thread."""
    follower = follower_of(driver)
    follower.is_led = True
    with ThreadPoolExecutor(1) as thread:
        while (work := follower.next_work()) is not None:
            work.then(thread.submit(work.run).result())
    follower.is_led = False
    return follower


def with_rows_that_left_memory(folder: Path) -> Driver:
    """Keep one undecided row in the first file; the others are decided, and only in files."""
    driver = filled(folder)
    for row in range(1, 8):
        driver.commit(row)
    driver.clock.advance(ms=HOUR)
    driver.append()
    driver.store.checkpoint()
    assert 0 not in driver.store.table.chunks
    return driver


def test_files_that_a_serving_broker_makes_again_are_whole(tmp_path: Path) -> None:
    driver = with_rows_that_left_memory(tmp_path)
    driver.commit(9)
    driver.store.close()
    disk = faulty(driver)
    whole = records(driver)
    for name in disk.list("mapped"):
        disk.remove(f"mapped/{name}")
    disk.capacity_bytes = disk._used_bytes() + 100
    driver = driver.opened_again()
    disk.capacity_bytes = None
    assert led(driver).state == "follows"
    assert must_agree(driver) == [0, 8, *range(10, 20)]
    driver.store.close()
    assert np.array_equal(records(driver), whole)
    driver = driver.opened_again()
    assert follower_of(driver).disagreed == 0
    assert must_agree(driver) == [0, 8, *range(10, 20)]


def test_decisions_beyond_the_limit_of_notes_leave_the_files_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("escrowmq.store.states.notes.NOTES_MAX", 3)
    driver = filled(tmp_path)
    follower, store = follower_of(driver), driver.store
    store.follower = None
    for row in range(1, 8):
        driver.commit(row)
    driver.clock.advance(ms=HOUR)
    driver.append()
    store.checkpoint()
    assert 0 not in store.table.chunks
    store.follower = follower
    assert led(driver).disagreed == 0
    driver.store.close()
    assert records(driver)["state"].tolist() == [4, *[8] * 7]
    driver = driver.opened_again()
    assert follower_of(driver).disagreed == 0
    assert must_agree(driver) == [0, *range(8, 20)]


def test_a_wrong_record_of_a_row_that_left_memory_is_corrected_whole(tmp_path: Path) -> None:
    driver = with_rows_that_left_memory(tmp_path)
    follower = follower_of(driver)
    states = follower.states
    assert isinstance(states, MappedStates)
    states._files[0].records["state"][3] = 4
    follower.verify()
    assert led(driver).disagreed == 1
    assert must_agree(driver) == [0, *range(8, 20)]
    driver = driver.closed_and_opened()
    # It was told once, and the restart finds nothing more to correct.
    assert follower_of(driver).disagreed == 0
    driver.store.close()
    assert records(driver)["state"].tolist() == [4, *[8] * 7]


def test_a_file_that_a_checkpoint_replaces_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = with_rows_that_left_memory(tmp_path)
    store = driver.store
    files, read = store.table.files, store.table.files._read

    def replaced(*_: object) -> Rows:
        monkeypatch.setattr(files, "_read", read)
        files.chunks = list(files.chunks[:1])
        raise StoreCorrupt("state_table_damaged", "the file is missing")

    monkeypatch.setattr(files, "_read", replaced)
    rows = with_filed(store, rows_of(0), 0, 8)
    assert rows["half_offset"].tolist() == list(range(1, 8))
    monkeypatch.setattr(files, "_read", replaced)
    with pytest.raises(StoreCorrupt):
        with_filed(store, rows_of(0), 0, 8)


def test_files_of_another_history_are_made_again(tmp_path: Path) -> None:
    driver = filled(tmp_path, 8)
    driver.store.close()
    body = msgspec.json.encode(StatePosition("other", 1, 8))
    write_whole(driver.disk, "mapped/position", b"%08x %s" % (crc32(body), body))
    driver = driver.opened_again()
    assert follower_of(driver).caught_up == 8
    assert must_agree(driver) == list(range(8))


def test_a_part_that_went_back_is_opened_again(tmp_path: Path) -> None:
    driver = filled(tmp_path, 3)
    follower = follower_of(driver)
    follower.failed(StatesLostTrack())
    assert follower.state == "catching_up"
    follower.follow_all()
    assert must_agree(driver) == [0, 1, 2]


def test_real_files_are_changed_in_place(tmp_path: Path) -> None:
    driver = driver_of("mapped", tmp_path, OsDisk(tmp_path / "store"))
    for number in range(12):
        driver.hold(f"t{number}")
    driver.commit(3)
    found = np.fromfile(tmp_path / "store" / FIRST, dtype=RECORD)
    assert found["state"].tolist() == [4, 4, 4, 8, 4, 4, 4, 4]
    for row in range(12):
        driver.commit(row)
    assert not (tmp_path / "store" / FIRST).exists()
    driver.store.close()
    driver = driver.opened_again()
    assert must_agree(driver) == []
    driver.store.give_back()


def test_a_decision_of_a_row_in_a_deleted_file_shows_the_difference(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    states = follower_of(driver).states
    assert isinstance(states, MappedStates)
    states._remove(0)
    driver.commit(1)
    assert follower_of(driver).disagreed == 1
    assert must_agree(driver) == [0, *range(2, 20)]


def test_a_replaced_part_without_undecided_rows_needs_no_file(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    follower = follower_of(driver)
    for row in range(8):
        driver.commit(row)
    assert follower.states.replace(follower.ranges.part(0)) == 0
    assert FIRST not in faulty(driver).snapshot()
    assert SECOND in faulty(driver).snapshot()


def test_a_part_with_stale_undecided_rows_is_removed(tmp_path: Path) -> None:
    driver = filled(tmp_path)
    store, follower = driver.store, follower_of(driver)
    store.follower = None
    for row in range(8):
        driver.commit(row)
    assert follower.states.replace(follower.ranges.part(0)) == 8
    assert FIRST not in faulty(driver).snapshot()
    store.follower = follower
