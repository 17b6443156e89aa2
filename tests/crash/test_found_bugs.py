"""Bugs that this suite has found, each with the fewest steps that show it; see TRACK_RECORD.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import interesting_survivors
from tests.crash.driver import BORN, CONFIG, Driver
from tests.crash.explore import Exploration


def test_a_late_commit_named_by_its_youngest_half_copies_the_oldest() -> None:
    driver = Driver(FaultyDisk(BORN))
    driver.prepare(driver.message(), transaction_id="parts", number=0)
    driver.append(driver.message(size=4_000))
    driver.sync()
    driver.clock.advance(seconds=9)
    young = driver.prepare(driver.message(), transaction_id="parts", number=1)
    driver.sync()
    driver.clock.advance(seconds=2)
    driver.commit(young)
    driver.sync()
    driver.clock.advance(seconds=52)
    driver.append(driver.message())
    driver.sync()
    driver.retain()
    assert driver.store.log_start > 0
    driver.judge()


def grow_old(driver: Driver, seconds: int) -> None:
    """Advance time and fill a segment, so that retention can delete what came before."""
    driver.clock.advance(seconds=seconds)
    driver.append(driver.message(size=4_000))
    driver.append(driver.message(size=4_000))
    driver.sync()


def test_a_decision_whose_record_was_deleted_still_stands() -> None:
    driver = Driver(FaultyDisk(BORN))
    row = driver.prepare(driver.message())
    driver.commit(row)
    grow_old(driver, 1)
    grow_old(driver, 70)
    driver.retain()
    assert driver.store.log_start > 0
    driver.commit(row)
    driver.roll_back(row)
    driver.judge()


def test_a_carried_message_that_waits_for_its_time_knows_who_decided_it() -> None:
    driver = Driver(FaultyDisk(BORN))
    row = driver.prepare(driver.message(after_ms=500_000))
    driver.commit(driver.prepare(*(driver.message() for _ in range(7))))
    grow_old(driver, 2)
    driver.checkpoint()
    assert row in driver.store.table.survivors.rows
    driver.clock.advance(seconds=3)
    driver.commit(row)
    driver.sync()
    driver.checkpoint()
    grow_old(driver, 58)
    driver.retain()
    assert driver.store.core.row(row).location > driver.store.log_start
    driver.judge()


def test_the_newest_request_is_found_by_id_wherever_its_row_is() -> None:
    driver = Driver(FaultyDisk(BORN))
    rest = driver.prepare(*(driver.message() for _ in range(7)))
    old = driver.prepare(driver.message(), transaction_id="parts", number=0)
    driver.sync()
    young = driver.prepare(driver.message(), transaction_id="parts", number=1)
    others = driver.prepare(*(driver.message() for _ in range(7)))
    driver.commit(others)
    driver.sync()
    driver.clock.advance(seconds=5)
    driver.append(driver.message())
    driver.sync()
    driver.checkpoint()
    assert {old, young} - driver.store.table.survivors.rows.keys() == {old}
    assert rest == 0
    driver.judge()


def test_a_transaction_whose_id_is_damaged_is_not_taken_for_a_new_one() -> None:
    driver = Driver(FaultyDisk(BORN))
    message = driver.message()
    driver.prepare(message, transaction_id="damaged-id", number=0)
    driver.sync()
    driver.checkpoint()
    segment = "commitlog/00000000000000000000"
    at = driver.disk.snapshot()[segment].index(b"damaged-id")
    driver.disk.flip_bit(segment, at, 0)
    with pytest.raises(StoreCorrupt, match="frame_damaged"):
        driver.prepare(message, transaction_id="damaged-id", number=0)


def test_a_crash_while_a_tail_of_several_segments_is_rewritten_loses_nothing() -> None:
    driver = Driver(FaultyDisk(BORN), replace(CONFIG, checkpoint_bytes=100_000))
    driver.append(driver.message())
    driver.sync()
    # One batch, one flush, three segments: no frame states yet that they were flushed.
    for _ in range(3):
        driver.append(driver.message(size=3_500))
    driver.sync()
    exploration = Exploration(driver)
    case = exploration.case(len(driver.disk.journal))
    recovered = exploration.judge(case)
    assert recovered is not None
    for point in CrashExplorer(tuple(recovered.journal), recovered.start):
        for survivors in interesting_survivors(point.pending):
            exploration.judge(replace(case, image=point.crash_image(survivors)))
