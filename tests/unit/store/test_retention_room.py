"""Retention checks for room before it carries anything; undecided bytes do not count as size."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.store.disk.space import RoomLevel
from escrowmq.store.retention import carry_slices
from escrowmq.store.retention.retention import do_step, next_step, retirements
from escrowmq.store.retention.retirement import Carrying, Removed, Waits
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.commands import Decision
from escrowmq.transaction.states import State
from tests.unit.logged import events
from tests.unit.store.helpers import Driver, faulty, message
from tests.unit.store.test_retirement import MIN, RETENTION, used_bytes, with_old_halves

# Room


def nearly_full(driver: Driver, room: int) -> FaultyDisk:
    """The driver's disk, with this much room above what even retention leaves free."""
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + disk.allocated("reserve") + MIN // 4 + room
    return disk


def test_without_room_for_what_must_be_carried_nothing_is_carried_and_nothing_breaks() -> None:
    driver = with_old_halves(segments=3, halves=6, free_bytes_min=MIN)
    disk = nearly_full(driver, -MIN // 8)
    end = driver.store.log.end
    removed = driver.retain()
    assert (removed.waits, removed.segments, removed.carried) == (Waits.FOR_ROOM, 0, 0)
    assert removed.missing_bytes > 0
    assert driver.store.log.end == end
    disk.capacity_bytes = disk.capacity_bytes or 0
    disk.capacity_bytes += removed.missing_bytes + MIN
    again = driver.retain()
    assert (again.waits, again.segments > 0, again.carried) == (Waits.NO, True, 18)


def test_room_that_goes_while_it_works_makes_it_wait_and_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program fills the disk between two slices."""
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
    driver = with_old_halves(segments=1, halves=6, free_bytes_min=MIN)
    disk = faulty(driver)
    now_ms, removed = driver.clock.now_ms(), Removed(log_start=0)
    steps = retirements(driver.store, now_ms, removed)
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        if isinstance(step, Carrying):
            disk.capacity_bytes = used_bytes(disk)
    assert (removed.waits, removed.segments, removed.carried) == (Waits.FOR_ROOM, 0, 1)
    assert driver.store.failure is None
    disk.capacity_bytes = None
    again = driver.retain()
    assert (again.waits, again.segments > 0, again.carried) == (Waits.NO, True, 5)


def test_the_reserve_is_the_last_room_to_retire_a_segment() -> None:
    driver = with_old_halves(segments=4, halves=2, free_bytes_min=4 * MIN, checkpoint_bytes=4096)
    driver.store.checkpoint()
    disk = faulty(driver)
    reserve = driver.store.space.reserve
    reserve.make()
    assert reserve.is_whole
    # Another program has taken all remaining space.
    disk.capacity_bytes = used_bytes(disk) + reserve.held
    assert disk.free_bytes() == 0
    assert driver.store.space.look() is RoomLevel.NOTHING
    removed = driver.retain()
    assert (removed.waits, removed.carried) == (Waits.NO, 8)
    assert removed.segments >= 4
    assert reserve.held == 0
    # The free space is no longer the reserve's.
    assert disk.free_bytes() > 0
    disk.capacity_bytes = None
    driver.store.space.look()
    assert driver.store.space.wants_reserve


def test_a_reserve_that_would_not_suffice_is_kept() -> None:
    driver = with_old_halves(segments=2, halves=6, free_bytes_min=1024, segment_bytes_max=16_384)
    driver.store.space.reserve.make()
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + driver.store.space.reserve.held
    assert driver.retain().waits is Waits.FOR_ROOM
    assert driver.store.space.reserve.is_whole


def test_with_nothing_kept_free_retention_waits_for_no_room() -> None:
    driver = with_old_halves(segments=1, halves=2, free_bytes_min=0)
    assert driver.retain().carried == 2
    assert driver.store.space.look_for_retention(2**62) == 0


# A full disk at a start


def test_a_start_on_a_full_disk_takes_the_reserve_and_retires_segments() -> None:
    """An earlier release refused to start, because there was no room to rewrite the tail."""
    driver = with_old_halves(segments=6, halves=2, free_bytes_min=4 * MIN, segment_bytes_max=16_384)
    driver.store.checkpoint()
    driver.store.space.reserve.make()
    disk = faulty(driver)
    driver.append(message("last"))
    disk.capacity_bytes = used_bytes(disk) + driver.store.space.reserve.held
    after = driver.opened_again()
    assert not after.store.space.reserve.held
    assert after.bodies() == ["last"]
    assert after.half(0).state is State.PREPARED
    # It now has room to delete the segments that it could not delete before.
    removed = after.retain()
    assert (removed.waits, removed.carried, removed.segments >= 6) == (Waits.NO, 12, True)
    assert after.store.space.look() < RoomLevel.NOTHING
    after.commit(0)
    assert len(after.bodies()) == 2


def test_a_start_on_a_full_disk_without_a_reserve_says_so() -> None:
    driver = Driver(free_bytes_min=MIN)
    driver.append(message("kept"))
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk)
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()


def test_a_reserve_that_is_too_small_for_a_start_is_given_up_and_the_start_says_so() -> None:
    driver = Driver(free_bytes_min=800)
    driver.append(message(bytes(3_000)))
    driver.store.space.reserve.make()
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + 100
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()
    disk.capacity_bytes = None
    assert len(driver.opened_again().messages()) == 1


def test_a_reserve_that_does_not_fit_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(free_bytes_min=MIN)
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + 100
    driver.store.space.reserve.make()
    assert not driver.store.space.reserve.held
    assert not disk.exists("reserve")
    assert "reserve_not_made" in events(caplog)
    # A quota may allow less than the disk has, so it retries only when more is free.
    disk.capacity_bytes += MIN
    driver.store.space.look()
    driver.store.space.level = RoomLevel.ALL
    assert driver.store.space.wants_reserve
    driver.store.space.free_bytes = 100
    assert not driver.store.space.wants_reserve


# Undecided bytes and ``store.retention_bytes``


def test_undecided_bytes_do_not_count_against_the_size_of_the_log() -> None:
    """Visible messages keep their room, and nothing is carried forward without end."""
    driver = Driver(retention_bytes=8_000, retention_ms=1_000 * RETENTION)
    for number in range(40):
        driver.hold(f"t{number}", message("." * 1_000))
    driver.append(message("visible"))
    driver.roll_segment()
    assert driver.store.table.needed_bytes > 5 * driver.store.config.retention_bytes
    end = driver.store.log.end
    for _ in range(3):
        assert driver.retain().carried == 0
    assert driver.store.log.end == end
    assert "visible" in driver.bodies()


def test_size_alone_copies_no_half_message_twice_while_undecided_ones_exceed_it() -> None:
    driver = Driver(retention_bytes=8_000, retention_ms=1_000 * RETENTION)
    for number in range(40):
        driver.hold(f"t{number}", message("." * 1_000))
    carried, removed = 0, Removed(log_start=0)
    for number in range(60):
        driver.append(message(f"{number}" + "." * 1_000))
        removed = driver.retain()
        carried += removed.carried
    assert carried == 40
    assert removed.waits is Waits.FOR_DECISIONS
    # The newest visible messages fill at least the room that they are allowed.
    assert len(driver.bodies()) >= 7
    for row in range(40):
        driver.roll_back(row)
    assert driver.retain().waits is Waits.NO
    assert driver.store.log.written - driver.store.log.start < 8_000 + 3 * 4_096


def test_age_carries_again_what_size_alone_does_not() -> None:
    driver = Driver(retention_bytes=8_000)
    for number in range(20):
        driver.hold(f"t{number}", message("." * 1_000))
    while driver.retain().waits is Waits.NO:
        driver.append(message("." * 1_000, topic="filler"))
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    assert driver.retain().carried == 20


def test_a_few_parked_ones_do_not_keep_the_log_above_its_size() -> None:
    """They are carried again once per log size written, because they are a small part of it."""
    driver = Driver(retention_bytes=16_000, retention_ms=1_000 * RETENTION)
    driver.hold("parked")
    for _ in range(100):
        driver.append(message("." * 1_000))
        driver.retain()
        assert driver.store.log.written - driver.store.log.start < 16_000 + 3 * 4_096
    driver.commit(0)
    assert driver.bodies()[-1] == "parked"
