"""Disk space: which requests may still write, and why a full disk is not a failure."""

from __future__ import annotations

import errno

import pytest

from escrowmq.model.errors import StoreUnusable, Unavailable
from escrowmq.store.disk.space import RECORD_BYTES, RoomLevel, Space
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from tests.unit.logged import events
from tests.unit.store.helpers import Driver, faulty, message

MIN = 1_000_000


def with_free(free_bytes: int, was: Space | None = None) -> Space:
    """A space with this many bytes free."""
    disk = FaultyDisk()
    disk.capacity_bytes = free_bytes
    if was is None:
        return Space(disk, MIN)
    was._disk = disk
    was.look()
    return was


@pytest.mark.parametrize(
    ("free_bytes", "level"),
    [
        (MIN, RoomLevel.ALL),
        (MIN - 1, RoomLevel.NO_MESSAGES),
        (MIN // 2, RoomLevel.NO_MESSAGES),
        (MIN // 2 - 1, RoomLevel.NO_DECISIONS),
        (MIN // 4, RoomLevel.NO_DECISIONS),
        (MIN // 4 - 1, RoomLevel.NOTHING),
        (0, RoomLevel.NOTHING),
    ],
)
def test_the_free_space_decides_which_commands_are_refused(
    free_bytes: int, level: RoomLevel
) -> None:
    assert with_free(free_bytes).level is level


@pytest.mark.parametrize(
    ("level", "message_refused", "decision_refused"),
    [
        (RoomLevel.ALL, False, False),
        (RoomLevel.NO_MESSAGES, True, False),
        (RoomLevel.NO_DECISIONS, True, True),
        (RoomLevel.NOTHING, True, True),
    ],
)
def test_messages_are_refused_before_decisions(
    level: RoomLevel, *, message_refused: bool, decision_refused: bool
) -> None:
    space = with_free(10 * MIN)
    space.level = level
    for message_bytes, is_refused in ((1, message_refused), (None, decision_refused)):
        assert space.claim(message_bytes) is (level is RoomLevel.ALL)
        if is_refused:
            with pytest.raises(Unavailable, match="disk_full"):
                space.refuse_if_full(message_bytes)
        else:
            space.refuse_if_full(message_bytes)


def test_bytes_claimed_since_the_last_measurement_count() -> None:
    space = with_free(MIN + 10 * RECORD_BYTES)
    assert space.claim(8 * RECORD_BYTES)
    assert space.claim(None)
    assert not space.claim(0)
    assert space.look(pending_bytes=0) is RoomLevel.ALL
    assert space.look(pending_bytes=11 * RECORD_BYTES) is RoomLevel.NO_MESSAGES


def test_a_little_more_than_was_missing_must_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = with_free(MIN - 1)
    assert with_free(MIN + 1, space).level is RoomLevel.NO_MESSAGES
    assert with_free(MIN * 9 // 8, space).level is RoomLevel.ALL
    assert with_free(MIN + 1, space).level is RoomLevel.ALL
    assert with_free(0, space).level is RoomLevel.NOTHING
    assert with_free(MIN // 2, space).level is RoomLevel.NO_DECISIONS
    assert events(caplog) == ["disk_has_room", "disk_full", "disk_has_room"]


def test_with_nothing_kept_free_no_command_is_refused() -> None:
    disk = FaultyDisk()
    disk.capacity_bytes = 0
    space = Space(disk, 0)
    assert space.level is RoomLevel.ALL
    assert space.look_for_files()


def test_a_large_file_needs_its_own_room() -> None:
    space = with_free(MIN)
    assert space.look_for_files(MIN // 2)
    assert not space.look_for_files(MIN)


def nearly_full(driver: Driver) -> FaultyDisk:
    """The driver's disk, with one byte less free than a quarter of the required minimum."""
    disk = faulty(driver)
    disk.capacity_bytes = disk_used(disk) + driver.store.config.free_bytes_min // 4 - 1
    return disk


def disk_used(disk: FaultyDisk) -> int:
    return sum(map(len, disk.snapshot().values()))


def test_a_store_without_room_closes_and_opens_without_a_checkpoint() -> None:
    driver = Driver(free_bytes_min=MIN, checkpoint_bytes=4096)
    for number in range(40):
        driver.append(message(f"{number}", keys=f"k{number}"))
    disk = nearly_full(driver)
    assert driver.store.checkpoint_due
    assert not driver.store.space.look_for_files()
    before = disk.snapshot()["checkpoint"]
    driver = driver.closed_and_opened()
    assert disk.snapshot()["checkpoint"] == before
    assert len(driver.bodies()) == 40
    disk.capacity_bytes = None
    assert driver.store.checkpoint_due
    assert driver.store.space.look_for_files()
    driver.store.checkpoint()
    assert not driver.store.checkpoint_due


def test_runs_of_keys_are_not_merged_without_room_for_it() -> None:
    driver = Driver(free_bytes_min=MIN)
    for number in range(40):
        driver.append(message(f"{number}", keys=f"k{number}"))
        driver.store.checkpoint()
        if driver.store.keys.merge_due():
            break
    assert driver.store.keys.merge_bytes() > 0
    disk = faulty(driver)
    disk.capacity_bytes = disk_used(disk) + MIN // 4 + driver.store.keys.merge_bytes() - 1
    driver.append(message("more", keys="more"))
    driver.store.checkpoint()
    assert driver.store.keys.merge_due()
    disk.capacity_bytes = None
    driver.append(message("last", keys="last"))
    driver.store.checkpoint()
    assert not driver.store.keys.merge_due()


def test_a_start_without_room_for_what_it_must_write_says_so() -> None:
    driver = Driver(free_bytes_min=MIN)
    driver.append(message("kept"))
    disk = faulty(driver)
    disk.capacity_bytes = disk_used(disk)
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()
    disk.capacity_bytes = None
    assert driver.opened_again().bodies() == ["kept"]


def test_a_start_that_fails_otherwise_says_that() -> None:
    driver = Driver()
    driver.append(message("kept"))
    faulty(driver).fail_after(DiskCall.WRITE, 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        driver.opened_again()
