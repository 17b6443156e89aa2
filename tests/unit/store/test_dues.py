"""Due checks are counted, and each one that comes due is news exactly once."""

from __future__ import annotations

import pytest

from escrowmq.store.table.chunk import Checks
from escrowmq.store.table.dues import Dues
from escrowmq.transaction.commands import CheckSent, Park, Resume
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, message

AFTER = CheckPolicy().check_after_ms
FIRST = T0 + AFTER


def dues_of(driver: Driver) -> Dues:
    return Dues(driver.store.table, driver.store.core.names)


def look(driver: Driver, dues: Dues) -> Checks:
    return dues.look(driver.clock.now_ms())


def test_nothing_is_due_in_an_empty_store() -> None:
    driver = Driver()
    driver.append(message("later", deliver_at_ms=T0 + MINUTE))
    driver.clock.advance(ms=HOUR)
    dues = dues_of(driver)
    assert look(driver, dues) == Checks()
    assert not dues.may_be_news(NEVER - 1)


def test_transactions_are_counted_once_and_due_at_their_time() -> None:
    driver = Driver()
    dues = dues_of(driver)
    driver.hold("many", message("a"), message("b"), number=0)
    driver.hold("many", message("c"), number=1)
    driver.hold("attempt", group="%SINK%app")
    driver.clock.advance(ms=SECOND)
    driver.hold("one")
    assert look(driver, dues) == Checks(next_due_at_ms=FIRST, undecided=3, sink_attempts=1)
    assert not dues.may_be_news(FIRST - 1)
    assert dues.may_be_news(FIRST)
    driver.clock.advance(ms=AFTER)
    assert look(driver, dues) == Checks(
        due=3, newest_due_at_ms=FIRST + SECOND, undecided=3, sink_attempts=1
    )
    assert not dues.may_be_news(driver.clock.now_ms() + HOUR)


def test_whatever_happens_to_a_transaction_is_seen_by_the_next_look() -> None:
    driver = Driver()
    dues = dues_of(driver)
    rows = [driver.hold(name).half_offset for name in ("a", "b", "c", "d")]
    driver.clock.advance(ms=AFTER)
    assert look(driver, dues).due == 4
    driver.commit(rows[0])
    assert look(driver, dues).due == 3
    driver.do(Park(half_offset=rows[1], reason="why"))
    assert (look(driver, dues).due, look(driver, dues).undecided) == (2, 2)
    driver.do(CheckSent(half_offset=rows[2], client="p1"))
    seen = look(driver, dues)
    assert (seen.due, seen.undecided) == (1, 2)
    assert seen.next_due_at_ms == driver.clock.now_ms() + CheckPolicy().check_interval_ms


def test_a_transaction_due_at_once_is_news_even_right_after_a_look() -> None:
    driver = Driver()
    dues = dues_of(driver)
    parked = driver.hold("parked").half_offset
    driver.do(Park(half_offset=parked, reason="why"))
    before = look(driver, dues)
    driver.do(Resume(half_offset=parked, by="me"))
    assert dues.may_be_news(T0)
    after = look(driver, dues)
    assert (before.due, after.due) == (0, 1)
    assert before.newest_due_at_ms <= T0 < after.newest_due_at_ms == dues.looked_at_ms == T0 + 1
    # It was reported, so the next look has nothing new.
    again = look(driver, dues)
    assert again.newest_due_at_ms == dues.looked_at_ms == T0 + 1


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_rows_that_outlive_their_chunk_are_counted_and_are_no_news_again(
    *, is_looked_at: bool
) -> None:
    driver = Driver()
    dues = dues_of(driver)
    old = driver.hold("old", group="%SINK%app", check_after_ms=0).half_offset
    late = driver.hold("late", check_after_ms=HOUR).half_offset
    for number in range(14):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    if is_looked_at:
        assert look(driver, dues).due == 1
    for row in range(8, 16):
        assert row not in (old, late)
    driver.clock.advance(ms=2 * MINUTE)
    driver.commit(driver.hold("young").half_offset)
    # A chunk may leave memory with one needed row.
    driver.commit(late)
    late = driver.hold("late again", check_after_ms=HOUR).half_offset
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [old]
    assert list(driver.store.table.chunks) == [16]
    assert dues.may_be_news(driver.clock.now_ms()) is not is_looked_at
    seen = look(driver, dues)
    assert (seen.due, seen.undecided, seen.sink_attempts) == (1, 2, 1)
    assert seen.newest_due_at_ms == T0
    assert seen.next_due_at_ms == driver.clock.now_ms() + HOUR
    driver.do(CheckSent(half_offset=old, client="p1"))
    assert look(driver, dues).due == 0


def test_a_chunk_that_is_about_to_leave_is_counted_once() -> None:
    driver = Driver()
    dues = dues_of(driver)
    old = driver.hold("old", check_after_ms=HOUR).half_offset
    for number in range(8):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.commit(driver.hold("young").half_offset)
    job = driver.store.begin_checkpoint()
    assert look(driver, dues).undecided == 1
    job.write()
    driver.store.end_checkpoint(job)
    assert list(driver.store.table.survivors.rows) == [old]
    assert not dues.may_be_news(T0 + HOUR - 1)
    assert dues.may_be_news(T0 + HOUR)


def test_after_a_restart_everything_is_looked_at_anew() -> None:
    driver = Driver()
    driver.hold("a")
    driver.clock.advance(ms=AFTER)
    again = driver.crashed()
    dues = dues_of(again)
    assert dues.may_be_news(again.clock.now_ms())
    assert look(again, dues) == Checks(due=1, newest_due_at_ms=FIRST, undecided=1)


def test_a_clock_that_goes_back_makes_nothing_less_due() -> None:
    driver = Driver()
    dues = dues_of(driver)
    driver.hold("a")
    assert dues.look(FIRST).due == 1
    assert dues.look(T0).due == 1
    assert dues.looked_at_ms == FIRST
