"""The end of a queue at an earlier end of the log, where a reader continues after a restore."""

from __future__ import annotations

import pytest

from escrowmq.model.clock import ClockReading
from escrowmq.model.errors import RequestRefused
from escrowmq.store.reading.ends import end_at
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.recovery.recovery import start_store
from escrowmq.testing import FaultyDisk
from escrowmq.transaction.commands import Append
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.store.helpers import HOST, HOUR, SECOND, T0, Driver, message, small_config


def ended(driver: Driver, log_offset: int) -> int:
    queue = driver.reader.queue("orders", 0)
    assert queue is not None
    return end_at(driver.store, driver.reader, queue, log_offset)


def test_messages_before_the_place_count_and_those_after_it_do_not() -> None:
    driver = Driver()
    places = []
    for body in "abc":
        places.append(driver.store.log.end)
        driver.append(message(body))
        driver.clock.advance(ms=SECOND if body == "b" else 0)
    # Two of them became visible in the same millisecond.
    assert [ended(driver, place) for place in places] == [0, 1, 2]
    assert ended(driver, driver.store.log.end) == 3


def test_a_frame_that_makes_nothing_visible_here_is_a_place_too() -> None:
    driver = Driver()
    driver.append(message("a"))
    same_time = driver.store.log.end
    driver.append(message("elsewhere", topic="stock"))
    assert ended(driver, same_time) == 1
    driver.clock.advance(ms=SECOND)
    later = driver.store.log.end
    driver.append(message("elsewhere", topic="stock"))
    driver.clock.advance(ms=SECOND)
    driver.append(message("b"))
    assert ended(driver, later) == 1


def test_a_half_message_of_the_same_millisecond_counts_by_its_decision() -> None:
    driver = Driver()
    driver.append(message("a"))
    early, late = driver.hold("early").half_offset, driver.hold("late").half_offset
    before = driver.store.log.end
    driver.commit(early)
    between = driver.store.log.end
    driver.commit(late)
    after = driver.store.log.end
    driver.append(message("b"))
    assert [ended(driver, place) for place in (before, between, after)] == [1, 2, 3]


def test_a_half_message_that_waited_for_its_delay_counts_as_visible_later() -> None:
    """It is better to read one message twice than not at all."""
    driver = Driver()
    driver.append(message("a"))
    driver.commit(driver.hold("slow", message("slow", deliver_after_ms=SECOND)).half_offset)
    driver.clock.advance(ms=SECOND)
    driver.release()
    place = driver.store.log.end
    driver.append(message("b"))
    assert ended(driver, place) == 1


def test_an_ordinary_message_that_waited_for_its_delay_counts_as_visible_later() -> None:
    driver = Driver()
    driver.append(message("a"))
    driver.append(message("slow", deliver_at_ms=T0 + SECOND))
    driver.clock.advance(ms=SECOND)
    driver.append(message("b"))
    place = driver.store.log.end
    driver.release()
    assert ended(driver, place) == 2


def test_where_an_epoch_begins_the_end_is_exact() -> None:
    disk = FaultyDisk()
    ends = []
    for _ in range(3):
        reading = ClockReading(T0, 0)
        store, _ = start_store(disk, small_config(), CheckPolicy(), HOST, reading)
        for _ in range(2):
            store.execute(Append(messages=(message(),)), T0)
        store.sync()
        ends = [epoch.log_offset for epoch in store.core.lineage.epochs[1:]]
        reader = StoreReader(store)
        queue = reader.queue("orders", 0)
        assert queue is not None
        found = [end_at(store, reader, queue, place) for place in ends]
        assert found == [2 * number for number in range(len(ends))]
        store.close()


def test_a_place_that_is_deleted_or_no_frame_is_told() -> None:
    driver = Driver()
    driver.append(message("a"))
    driver.roll_segment()
    driver.roll_segment()
    last = driver.store.log.segments[-1].start
    with pytest.raises(RequestRefused, match="no_frame_here"):
        ended(driver, last + 1)
    assert ended(driver, last) == 1
    driver.clock.advance(ms=100 * HOUR)
    driver.append(message("b"))
    driver.roll_segment()
    driver.store.checkpoint()
    driver.retain()
    assert driver.store.log.start > 0
    queue = driver.reader.queue("orders", 0)
    assert queue is not None
    assert ended(driver, 0) == queue.start
