"""Moves of store time are in the log and in the checkpoint, and tools know the record."""

from __future__ import annotations

import pytest

from escrowmq.model.clock import Anchor, ClockReading
from escrowmq.store.recovery.recovery import open_store, start_store
from escrowmq.store.repair.inspect import check
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import MoveTime
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import AGREES, BEHIND, PERSON, TimeMoved
from tests.unit.store.helpers import HOST, HOUR, T0, Driver, message, small_config

MOVE = MoveTime(
    from_ms=T0, to_ms=T0 + 4 * HOUR, why=PERSON, by="ann@ops", boot_ms=77, boot_id="boot"
)
MOVED = TimeMoved(T0, T0 + 4 * HOUR, PERSON, "ann@ops", 77, "boot")
ANCHOR = Anchor(T0 + 4 * HOUR, 77, "boot")


def known(driver: Driver) -> tuple[TimeMoved | None, Anchor | None]:
    core = driver.store.core
    return core.time_moved, core.anchor


def test_a_move_is_known_after_a_crash_a_stop_and_a_rebuild() -> None:
    driver = Driver()
    assert known(driver) == (None, None)
    driver.do(MOVE)
    assert known(driver) == (MOVED, ANCHOR)
    assert known(driver.crashed(nothing_survives)) == (MOVED, ANCHOR)
    assert known(driver.crashed(everything_survives)) == (MOVED, ANCHOR)
    again = driver.closed_and_opened()
    assert again.found.frames == 0
    assert known(again) == (MOVED, ANCHOR)
    assert not check(again.disk).is_damaged


def test_a_move_outlives_the_log_that_it_stood_in() -> None:
    driver = Driver()
    driver.do(MOVE)
    for _ in range(3):
        for number in range(40):
            driver.append(message(f"{number:0100d}"))
        driver.clock.advance(ms=48 * HOUR)
    driver.retain()
    assert driver.store.log.start > 0
    assert known(driver.closed_and_opened()) == (MOVED, ANCHOR)


@pytest.mark.parametrize("why", [BEHIND, AGREES])
def test_where_store_time_does_not_move_the_boot_clock_stays_where_it_was(why: str) -> None:
    driver = Driver()
    driver.do(MOVE)
    driver.do(MoveTime(from_ms=T0 + 5 * HOUR, to_ms=T0, why=why, boot_ms=99, boot_id="boot"))
    moved, anchor = known(driver)
    assert moved is not None
    assert (moved.why, anchor) == (why, ANCHOR)


def test_a_start_remembers_the_boot_clock() -> None:
    disk = FaultyDisk()
    reading = ClockReading(T0, 77, "boot")
    store, found = start_store(disk, small_config(), CheckPolicy(), HOST, reading)
    assert (found.last_at_ms, store.last_at_ms) == (0, T0)
    store.close()
    later = ClockReading(T0 - 9 * HOUR, 77 + HOUR, "boot")
    store, found = start_store(disk, small_config(), CheckPolicy(), HOST, later)
    assert (found.last_at_ms, store.last_at_ms) == (T0, T0 + HOUR)
    again, _ = open_store(disk.crash(nothing_survives), small_config(), CheckPolicy(), HOST)
    assert again.core.anchor == Anchor(T0 + HOUR, 77 + HOUR, "boot")
