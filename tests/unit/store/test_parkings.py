"""Frames that parked transactions are numbered without gaps, the same after every restart."""

from __future__ import annotations

from escrowmq.store.checkpoint.checkpoint import PATH
from escrowmq.store.checkpoint.parkings import Parkings, SavedParkings
from escrowmq.transaction.commands import Park, Resume
from tests.unit.store.helpers import HOUR, Driver, faulty, message


def parked(driver: Driver, name: str, count: int = 1) -> int:
    """Park a new transaction; return where its frame is."""
    held = driver.hold(name, *(message(f"{name}{n}") for n in range(count)))
    frame = driver.store.log.end
    driver.do(Park(half_offset=held.half_offset, reason="why"))
    return frame


def known(driver: Driver) -> SavedParkings:
    return driver.store.parkings.saved()


def test_messages_are_numbered_in_the_order_of_their_parking() -> None:
    parkings = Parkings()
    assert (parkings.start, parkings.end) == (0, 0)
    parkings.add(100, 2)
    parkings.add(300, 1)
    parkings.add(300, 1)
    parkings.add(100, 2)
    assert parkings.end == 3
    assert [parkings.find(number) for number in range(3)] == [(100, 0), (100, 1), (300, 0)]
    assert [parkings.end_below(offset) for offset in (100, 101, 300, 301)] == [0, 2, 2, 3]


def test_forgotten_parkings_keep_their_numbers() -> None:
    parkings = Parkings(limit=2)
    for frame in (100, 200, 300):
        parkings.add(frame, 2)
    assert (parkings.start, parkings.end) == (2, 6)
    assert parkings.find(2) == (200, 0)
    parkings.forget_below(300)
    assert parkings.find(5) == (300, 1)
    parkings.forget_below(1_000)
    parkings.forget_below(1_000)
    assert (parkings.start, parkings.end, parkings.end_below(1_000)) == (6, 6, 6)
    parkings.add(2_000, 1)
    assert parkings.find(6) == (2_000, 0)


def test_a_transaction_counts_with_all_its_messages_each_time_it_is_parked() -> None:
    driver = Driver()
    first = parked(driver, "a", 3)
    second = parked(driver, "b")
    driver.do(Resume(half_offset=0, by="me"))
    third = driver.store.log.end
    driver.do(Park(half_offset=2, reason="again"))
    assert known(driver) == SavedParkings(0, [first, second, third], [3, 4, 7])


def test_they_are_the_same_after_a_crash_a_restart_and_a_rebuild() -> None:
    driver = Driver()
    parked(driver, "a", 3)
    driver.store.checkpoint()
    parked(driver, "b")
    before = known(driver)
    assert known(driver.crashed()) == before
    driver = driver.closed_and_opened()
    assert known(driver) == before
    driver.store.close()
    disk = faulty(driver)
    file = disk.open(PATH)
    file.write_at(0, b"damaged")
    file.close()
    rebuilt = driver.opened_again()
    assert rebuilt.found.rebuilt_because
    assert known(rebuilt) == before


def test_they_go_with_the_log_that_holds_them() -> None:
    driver = Driver()
    parked(driver, "a")
    driver.roll_segment()
    later = parked(driver, "b")
    assert known(driver).ends == [1, 2]
    driver.clock.advance(ms=25 * HOUR)
    driver.roll_segment()
    driver.clock.advance(ms=HOUR)
    driver.retain()
    assert driver.store.log.start > 0
    kept = known(driver)
    assert (kept.start, kept.frames) in ((1, [later]), (2, []))
    assert known(driver.crashed()) == kept
