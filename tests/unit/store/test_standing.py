"""How many transactions wait for a decision, and since when."""

from __future__ import annotations

from escrowmq.store.reading.undecided_counts import UndecidedCounts, standing
from escrowmq.transaction.commands import Park, Resume
from tests.unit.store.helpers import MINUTE, SECOND, T0, Driver, message


def test_a_store_without_transactions_has_none_that_wait() -> None:
    driver = Driver()
    driver.append(message("later", deliver_at_ms=T0 + MINUTE))
    assert standing(driver.store) == UndecidedCounts()


def test_transactions_are_counted_not_their_messages() -> None:
    driver = Driver()
    driver.commit(driver.hold("decided").half_offset)
    driver.clock.advance(ms=SECOND)
    driver.hold("t", message("a"), message("b"), number=0)
    driver.hold("t", message("c"), number=1)
    driver.clock.advance(ms=SECOND)
    driver.hold("u")
    expected = UndecidedCounts(undecided=2, oldest_undecided_at_ms=T0 + SECOND)
    assert standing(driver.store) == expected
    driver.do(Park(half_offset=1, reason="why"))
    parked = UndecidedCounts(undecided=1, oldest_undecided_at_ms=T0 + 2 * SECOND, parked=1)
    assert standing(driver.store) == parked
    assert standing(driver.crashed().store) == parked
    driver.do(Resume(half_offset=1, by="me"))
    assert standing(driver.store) == expected


def test_those_that_outlived_their_chunk_are_counted_too() -> None:
    driver = Driver()
    for chunk in range(2):
        for number in range(8):
            row = driver.hold(f"t{chunk}{number}").half_offset
            if number != 3:
                driver.roll_back(row)
    driver.do(Park(half_offset=11, reason="why"))
    driver.clock.advance(ms=2 * MINUTE)
    driver.hold("young")
    driver.store.checkpoint()
    assert sorted(driver.store.table.survivors.rows) == [3, 11]
    assert list(driver.store.table.chunks) == [16]
    expected = UndecidedCounts(undecided=2, oldest_undecided_at_ms=T0, parked=1)
    assert standing(driver.store) == expected
    driver.commit(3)
    driver.commit(16)
    assert standing(driver.store) == UndecidedCounts(parked=1)
