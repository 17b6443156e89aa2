"""A file that reserves disk space for when the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from escrowmq.model.clock import ClockReading
from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk import disk as disks
from escrowmq.store.disk.disk import Disk, OsDisk
from escrowmq.store.disk.reserve import PATH, Reserve
from escrowmq.store.recovery import recovery
from escrowmq.store.recovery.recovery import open_store, start_store
from escrowmq.store.repair.inspect import check
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.store.helpers import HOST, T0, Driver, message, small_config

MIB = 1024 * 1024


@pytest.fixture(params=["os", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """An empty disk of either kind."""
    return OsDisk(tmp_path) if request.param == "os" else FaultyDisk()


def test_a_file_holds_the_room_that_it_was_given(disk: Disk) -> None:
    assert disk.allocated(PATH) == 0
    disk.allocate(PATH, 3 * MIB + 5)
    assert disk.allocated(PATH) >= 3 * MIB + 5
    disk.allocate(PATH, 4 * MIB)
    assert disk.allocated(PATH) >= 4 * MIB
    disk.remove(PATH)
    assert disk.allocated(PATH) == 0


def test_where_the_system_cannot_give_room_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _start: int, _size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(disks, "_fallocate", refuse)
    disk = OsDisk(tmp_path)
    disk.allocate(PATH, 3 * MIB + 5)
    assert (tmp_path / PATH).stat().st_size == 3 * MIB + 5
    assert disk.allocated(PATH) >= 3 * MIB


def test_a_disk_that_cannot_give_the_room_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _start: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(disks, "_fallocate", full)
    with pytest.raises(OSError, match="full"):
        OsDisk(tmp_path).allocate(PATH, 10)
    with pytest.raises(OSError, match="Read-only"):
        OsDisk(tmp_path, read_only=True).allocate(PATH, 10)


def test_the_doubles_room_counts_as_used() -> None:
    disk = FaultyDisk()
    disk.capacity_bytes = 1_000
    disk.allocate(PATH, 600)
    assert disk.free_bytes() == 400
    with pytest.raises(OSError, match="No space"):
        disk.allocate("another", 500)
    file = disk.open("data", create=True)
    with pytest.raises(OSError, match="No space"):
        file.write_at(0, bytes(500))
    assert file.size() == 400


def test_a_reserve_is_made_released_and_found_again(disk: Disk) -> None:
    reserve = Reserve(disk, MIB)
    assert not reserve.is_whole
    reserve.make()
    assert reserve.is_whole
    assert Reserve(disk, MIB).is_whole
    assert not Reserve(disk, 2 * MIB).is_whole
    reserve.release()
    assert (reserve.held, disk.exists(PATH)) == (0, False)


def test_a_disk_that_fails_otherwise_is_no_full_one() -> None:
    disk = FaultyDisk()
    disk.fail_after(DiskCall.CREATE, 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        Reserve(disk, MIB).make()


def test_a_store_that_is_served_has_a_reserve_which_is_its_own_file() -> None:
    disk = FaultyDisk()
    config = small_config(free_bytes_min=8 * MIB)
    for _ in range(2):
        store, _ = start_store(disk, config, CheckPolicy(), HOST, ClockReading(T0, 0))
        assert store.space.reserve.held == MIB
        store.close()
    assert check(disk).findings == []


def test_with_nothing_kept_free_there_is_no_reserve() -> None:
    disk = FaultyDisk()
    start_store(disk, small_config(free_bytes_min=0), CheckPolicy(), HOST, ClockReading(T0, 0))
    assert not disk.exists(PATH)


def test_a_start_that_is_tried_again_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted segment takes up space as long as a process has it open."""
    config = small_config(free_bytes_min=8 * MIB)
    store, _ = start_store(OsDisk(tmp_path), config, CheckPolicy(), HOST, ClockReading(T0, 0))
    store.close()
    full = [True, False]
    replay = recovery.replay

    def full_at_first(*arguments: object) -> None:
        if full.pop(0):
            raise OSError(errno.ENOSPC, "full")
        replay(*arguments)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(recovery, "replay", full_at_first)
    before = len(list(Path("/proc/self/fd").iterdir()))
    store, _ = start_store(OsDisk(tmp_path), config, CheckPolicy(), HOST, ClockReading(T0, 0))
    store.close()
    assert full == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_failed_start_that_made_its_files_anew_leaves_none_of_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(OsDisk(tmp_path))
    for number in range(5):
        driver.append(message(f"m{number}", topic=f"t{number}"))
    driver.store.close()
    for path in tmp_path.glob("consumequeue/**/*"):
        if path.is_file():
            path.unlink()
    replay = recovery.replay

    def full_at_the_end(*arguments: object) -> None:
        replay(*arguments)  # type: ignore[arg-type] # as it was called
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(recovery, "replay", full_at_the_end)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        open_store(OsDisk(tmp_path), small_config(), CheckPolicy(), HOST)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
