"""A message that waited is found although its queue grew by more than a search reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from escrowmq.model.message import SentMessage
from escrowmq.protocol.message.stored_message import StoredMessage, decode
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.reading.visible_from import visible_from_ms
from escrowmq.transaction.commands import AttemptClaim, CheckSent, DecideBatch
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, faulty, message

#: Entries that a search examines here; a broker's search examines four million.
SEARCHED_MAX = 8
GROWTH = 5 * SEARCHED_MAX

Begin = Callable[[Driver], None]


def later(body: str = "late", **fields: int) -> SentMessage:
    return message(body, unique_key=body, **fields)  # type: ignore[arg-type]


def scheduled(driver: Driver) -> None:
    driver.append(later(deliver_at_ms=T0 + HOUR // 2))


def scheduled_among_others(driver: Driver) -> None:
    due_ms = T0 + HOUR // 2
    others = [message(f"{number}", queue_id=1, deliver_at_ms=due_ms) for number in range(3)]
    driver.append(*others, later(deliver_at_ms=due_ms), *others)


def scheduled_for_very_late(driver: Driver) -> None:
    """It is copied when it becomes visible."""
    driver.append(later(deliver_at_ms=T0 + 30 * HOUR))


def scheduled_among_others_for_very_late(driver: Driver) -> None:
    due_ms = T0 + 30 * HOUR
    others = [message(f"{number}", queue_id=1, deliver_at_ms=due_ms) for number in range(3)]
    driver.append(*others, later(deliver_at_ms=due_ms), *others)


def delayed_half(driver: Driver) -> None:
    driver.commit(driver.hold("t", later(deliver_after_ms=HOUR // 2)).half_offset)


def delayed_half_among_others(driver: Driver) -> None:
    held = driver.hold(
        "t",
        message("now", queue_id=1),
        later(deliver_after_ms=HOUR // 2),
        message("later", queue_id=1, deliver_after_ms=MINUTE),
    )
    driver.commit(held.half_offset)


def delayed_half_for_very_late(driver: Driver) -> None:
    driver.commit(driver.hold("t", later(deliver_after_ms=30 * HOUR)).half_offset)


def delayed_half_of_a_batch(driver: Driver) -> None:
    driver.hold("t", later(deliver_after_ms=HOUR // 2), message("now", queue_id=1))
    claim = AttemptClaim(transaction_id="t", last_number=0, rows=2)
    driver.do(DecideBatch(app_id="a", query_id="q", batch_id=0, attempts=(claim,), by="spark"))


def half_that_commits_very_late(driver: Driver) -> None:
    """It stays undecided until the end."""
    driver.hold("t", later())


CASES: list[Begin] = [
    scheduled,
    scheduled_among_others,
    scheduled_for_very_late,
    scheduled_among_others_for_very_late,
    delayed_half,
    delayed_half_among_others,
    delayed_half_for_very_late,
    delayed_half_of_a_batch,
    half_that_commits_very_late,
]


def grow(driver: Driver) -> None:
    for number in range(GROWTH):
        driver.append(message(f"filler {number}"))
        driver.clock.advance(ms=SECOND)


def found(driver: Driver) -> StoredMessage:
    """Find the late message by its log offset, as a consumer that gives it back does."""
    (late,) = (one for one in driver.messages() if one.body == b"late")
    located = StoreReader(driver.store, SEARCHED_MAX).at(late.log_offset)
    assert located is not None
    assert located.is_visible
    assert decode(located.message) == late
    return late


@pytest.mark.parametrize("begin", CASES)
def test_a_message_that_waited_while_its_queue_grew_is_found(begin: Begin) -> None:
    driver = Driver()
    begin(driver)
    grow(driver)
    driver.clock.advance(ms=31 * HOUR)
    driver.release()
    if driver.store.table.needed:
        driver.commit(0)
    grow(driver)
    assert found(driver).queue_offset == GROWTH
    assert found(driver.closed_and_opened()).queue_offset == GROWTH
    assert found(driver.crashed()).queue_offset == GROWTH


@pytest.mark.parametrize("begin", CASES)
def test_a_message_that_retention_carried_while_it_waited_is_found(begin: Begin) -> None:
    """The log no longer has the decision."""
    driver = Driver()
    begin(driver)
    driver.roll_segment()
    # The message is not released yet, so retention must carry it forward.
    driver.clock.advance(ms=25 * HOUR)
    grow(driver)
    assert driver.retain().log_start > 0
    assert driver.store.log.start > 0
    driver.clock.advance(ms=6 * HOUR)
    driver.release()
    if driver.store.table.needed:
        driver.commit(0)
    grow(driver)
    assert found(driver).queue_offset == GROWTH
    driver.roll_segment()
    assert found(driver.crashed()).queue_offset == GROWTH


def test_a_half_decided_among_thousands_is_found() -> None:
    driver = Driver()
    grow(driver)
    driver.hold("t", later())
    assert driver.obey((0, "commit")) == ["committed"]
    grow(driver)
    assert found(driver).queue_offset == GROWTH


def test_copies_that_share_a_frame_are_found() -> None:
    driver = Driver()
    for number in range(4):
        driver.append(message(f"{number}", queue_id=1, deliver_at_ms=T0 + 30 * HOUR))
    scheduled_for_very_late(driver)
    grow(driver)
    driver.clock.advance(ms=31 * HOUR)
    driver.release()
    grow(driver)
    assert found(driver).queue_offset == GROWTH


def test_bytes_like_a_frame_in_a_message_are_no_frame() -> None:
    driver = Driver(segment_bytes_max=1024 * 1024)
    frame = bytes(driver.store.log.peek(0, 4096))
    due_ms = T0 + HOUR // 2
    lies = (b"EMQF" * 200, frame + b"EMQF", bytes(300_000))
    others = [message(body, queue_id=1, deliver_at_ms=due_ms) for body in lies]
    driver.append(*others, later(deliver_at_ms=due_ms))
    grow(driver)
    driver.clock.advance(ms=HOUR)
    driver.release()
    grow(driver)
    assert found(driver).queue_offset == GROWTH


def test_without_its_frame_the_segment_says_since_when() -> None:
    """The records of the frame are damaged, while the message itself is intact."""
    driver = Driver()
    driver.append(message("before"))
    scheduled(driver)
    driver.append(message("after"))
    records_at = driver.half(0).location + driver.half(0).size
    path = f"commitlog/{driver.store.log.segments[0].start:020d}"
    faulty(driver).flip_bit(path, records_at + 3, 1)
    driver.clock.advance(ms=HOUR - 1)
    driver.release()
    assert visible_from_ms(driver.store, driver.half(0)) == T0
    assert found(driver).queue_offset == 2


def test_the_next_check_of_a_carried_half_is_not_its_time() -> None:
    driver = Driver()
    driver.hold("t", later())
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    driver.do(CheckSent(half_offset=0, client="c"))
    assert driver.half(0).next_at_ms > driver.clock.now_ms()
    driver.append(message("new"))
    driver.roll_segment()
    assert driver.retain().log_start > 0
    driver.commit(0)
    grow(driver)
    assert found(driver).queue_offset == 1
