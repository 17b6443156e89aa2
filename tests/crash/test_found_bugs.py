"""The bugs that this suite has found, each in as few steps as show it; see TRACK_RECORD.md."""

from __future__ import annotations

from escrowmq.testing.faulty_disk import FaultyDisk
from tests.crash.driver import BORN, Driver


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
