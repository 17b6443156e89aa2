"""Messages for later: scheduled ones, and half messages with a delay."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.transaction.commands import Append, End, Release
from escrowmq.transaction.records import NEVER
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, message, releasable


def scheduled(driver: Driver, *after_ms: int) -> list[int]:
    """Append one request; each message's body is its delay."""
    now_ms = driver.clock.now_ms()
    driver.append(*(message(f"{after}", deliver_at_ms=now_ms + after) for after in after_ms))
    return list(range(driver.store.table.end - len(after_ms), driver.store.table.end))


def test_a_scheduled_message_is_seen_from_its_time_on() -> None:
    driver = Driver()
    scheduled(driver, MINUTE)
    assert driver.bodies() == []
    driver.clock.advance(ms=MINUTE - 1)
    assert driver.release().records == ()
    driver.clock.advance(ms=1)
    driver.release()
    assert driver.bodies() == [str(MINUTE)]
    seen = driver.messages()[0]
    assert (seen.queue_offset, seen.stored_at_ms) == (0, T0 + MINUTE)


def test_a_scheduled_message_is_released_once() -> None:
    driver = Driver()
    rows = scheduled(driver, MINUTE)
    driver.clock.advance(ms=MINUTE)
    driver.release()
    driver.do(Release(half_offsets=tuple(rows)))
    driver.release()
    assert driver.bodies() == [str(MINUTE)]
    assert driver.half(rows[0]).next_at_ms == NEVER


def test_messages_are_released_in_the_order_of_their_times_not_of_their_arrival() -> None:
    driver = Driver()
    scheduled(driver, 30, 10)
    scheduled(driver, 20)
    scheduled(driver, 10)
    driver.clock.advance(ms=SECOND)
    driver.release()
    assert driver.bodies() == ["10", "10", "20", "30"]


def test_the_time_that_is_seen_is_that_of_the_release() -> None:
    """So a queue's times never go back, however late a release is."""
    driver = Driver()
    scheduled(driver, 10)
    driver.clock.advance(ms=MINUTE)
    driver.append(message("between"))
    driver.clock.advance(ms=MINUTE)
    driver.release()
    assert driver.bodies() == ["between", "10"]
    assert [one.stored_at_ms for one in driver.messages()] == [T0 + MINUTE, T0 + 2 * MINUTE]


def test_releasing_is_limited_and_goes_on_next_time() -> None:
    driver = Driver()
    scheduled(driver, 1, 2, 3)
    driver.clock.advance(ms=10)
    due = driver.store.table.due(driver.clock.now_ms(), 2)
    assert len(due) == 2
    driver.do(Release(half_offsets=tuple(due)))
    assert driver.bodies() == ["1", "2"]
    assert driver.store.table.due(driver.clock.now_ms(), 2) == [2]


def test_messages_that_do_not_wait_are_not_released() -> None:
    driver = Driver()
    driver.hold("undecided")
    driver.hold("rolled back")
    driver.roll_back(1)
    driver.hold("visible")
    driver.commit(2)
    driver.clock.advance(ms=HOUR)
    assert driver.do(Release(half_offsets=(0, 1, 2, 99))).records == ()
    assert driver.bodies() == ["visible"]


def test_messages_for_now_and_for_later_do_not_mix() -> None:
    driver = Driver()
    later = message("later", deliver_at_ms=T0 + 1)
    assert driver.refused(Append(messages=(message("now"), later))).code == "mixed_delivery_times"
    past = message("past", deliver_at_ms=T0)
    driver.append(past, message("now"))
    assert driver.bodies() == ["past", "now"]


@pytest.mark.parametrize("is_clean", [True, False])
def test_delayed_messages_still_wait_after_a_restart(*, is_clean: bool) -> None:
    driver = Driver()
    scheduled(driver, 10, MINUTE)
    driver.hold("t", message("half", deliver_after_ms=MINUTE))
    driver.clock.advance(ms=10)
    driver.release()
    driver.commit(2)
    after = driver.closed_and_opened() if is_clean else driver.crashed()
    assert after.bodies() == ["10"]
    assert after.store.table.due(T0 + MINUTE - 1, 9) == []
    after.clock.advance(ms=MINUTE)
    after.release()
    assert after.bodies() == ["10", str(MINUTE), "half"]
    assert after.crashed().bodies() == ["10", str(MINUTE), "half"]


def test_a_delay_counts_from_the_commit() -> None:
    driver = Driver()
    driver.hold("t", message("now"), message("later", deliver_after_ms=MINUTE), message("now too"))
    driver.clock.advance(ms=HOUR - 1)
    driver.commit(0)
    assert driver.bodies() == ["now", "now too"]
    driver.clock.advance(ms=MINUTE - 1)
    assert driver.release().records == ()
    driver.clock.advance(ms=1)
    driver.release()
    assert driver.bodies() == ["now", "now too", "later"]


def test_a_transaction_of_which_all_is_delayed_gives_nothing_at_its_commit() -> None:
    driver = Driver()
    driver.hold("t", message("a", deliver_after_ms=2), message("b", deliver_after_ms=1))
    driver.commit(0)
    assert driver.bodies() == []
    driver.clock.advance(ms=2)
    driver.release()
    assert driver.bodies() == ["b", "a"]


def test_a_rolled_back_delay_is_forgotten() -> None:
    driver = Driver()
    driver.hold("t", message("never", deliver_after_ms=1))
    driver.roll_back(0)
    driver.clock.advance(ms=HOUR)
    assert driver.store.table.due(driver.clock.now_ms(), 9) == []
    assert driver.store.core.delays == {}
    assert driver.bodies() == []


def test_a_scheduled_message_is_no_transaction() -> None:
    driver = Driver()
    scheduled(driver, MINUTE)
    end = End(half_offset=0, resolution=Resolution.COMMIT, by="x")
    assert driver.refused(end).code == "no_such_half_message"
    assert driver.reader.find_transaction("anything") is None


def test_a_message_released_very_late_is_copied_and_lives_a_whole_retention() -> None:
    driver = Driver()
    scheduled(driver, 2 * HOUR)
    scheduled(driver, 2 * HOUR)
    driver.append(message("old"))
    driver.roll_segment()
    driver.clock.advance(ms=2 * HOUR)
    driver.release()
    below = driver.roll_segment()
    driver.clock.advance(ms=23 * HOUR)
    assert 0 < driver.retain().log_start < below
    assert driver.bodies() == [str(2 * HOUR)] * 2


def test_undecided_transactions_that_are_due_do_not_stand_in_the_way_of_a_release() -> None:
    driver = Driver(chunk_rows=16)
    for number in range(15):
        driver.hold(f"t{number}")
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + MINUTE))
    table = driver.store.table
    assert releasable(table, driver.clock.now_ms(), 3) == []
    driver.clock.advance(ms=HOUR)
    now_ms = driver.clock.now_ms()
    assert len(table.due(now_ms, 3)) == 3
    assert releasable(table, now_ms, 3) == [15]


def test_a_row_that_outlives_its_chunk_is_released_too() -> None:
    driver = Driver(chunk_rows=8, copy_after_ms=24 * HOUR)
    driver.append(message("much later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    for number in range(15):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes"))
    driver.store.checkpoint()
    table = driver.store.table
    assert list(table.survivors.rows) == [0]
    driver.append(message("soon", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.clock.advance(ms=2 * HOUR)
    assert releasable(table, driver.clock.now_ms(), 9) == [0, 16]
    assert releasable(table, driver.clock.now_ms(), 1) == [0]


def test_undecided_transactions_are_not_looked_at_again_and_again_for_a_release() -> None:
    driver = Driver(chunk_rows=8, copy_after_ms=24 * HOUR)
    later_ms = driver.clock.now_ms() + 3 * HOUR
    driver.append(message("soon", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.append(message("later", deliver_at_ms=later_ms))
    driver.hold("undecided")
    driver.clock.advance(ms=2 * HOUR)
    driver.release()
    table, now_ms = driver.store.table, driver.clock.now_ms()
    assert table.due(now_ms, 9) == [2]
    assert releasable(table, now_ms, 9) == []
    assert table.chunks[0].release_from_ms == later_ms
    assert driver.closed_and_opened().store.table.chunks[0].release_from_ms == later_ms


def test_a_row_that_outlives_its_chunk_is_examined_when_it_is_due() -> None:
    driver = Driver(chunk_rows=8, copy_after_ms=24 * HOUR)
    driver.append(message("much later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    for number in range(7):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes"))
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [0]
    assert releasable(driver.store.table, T0 + HOUR - 1, 9) == []
    assert releasable(driver.store.table, T0 + HOUR, 9) == [0]
    driver.clock.advance(ms=2 * HOUR)
    driver.release()
    assert driver.bodies() == ["time passes", "much later"]
    assert releasable(driver.store.table, driver.clock.now_ms(), 9) == []
