"""Half messages that are still needed outlive the log they were written to."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import decode
from escrowmq.store.repair.inspect import check
from escrowmq.transaction.commands import CheckSent, End, Park, Resume
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, Driver, message

RETENTION = 24 * HOUR
MONTH = 30 * RETENTION


def outlive(driver: Driver) -> None:
    """Make everything so far old, and delete its log."""
    below = driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.retain()
    assert driver.store.log.start == below


def rebuilt(driver: Driver) -> Driver:
    """Open the store without its state table, so that everything is rebuilt from the log."""
    driver.store.close()
    for name in driver.disk.list("statetable"):
        driver.disk.remove(f"statetable/{name}")
    after = driver.opened_again()
    assert after.found.rebuilt_because
    return after


@pytest.fixture(params=["alive", "restarted", "rebuilt", "outlived_twice", "rebuilt_and_outlived"])
def later(request: pytest.FixtureRequest) -> str:
    """Events between carrying forward and the decision."""
    name: str = request.param
    return name


def after(driver: Driver, later: str) -> Driver:
    outlive(driver)
    if later == "restarted":
        return driver.closed_and_opened()
    if later == "rebuilt":
        return rebuilt(driver)
    if later == "outlived_twice":
        outlive(driver)
    if later == "rebuilt_and_outlived":
        driver = rebuilt(driver)
        outlive(driver)
    return driver


def test_an_undecided_half_keeps_its_offsets_and_can_be_committed(later: str) -> None:
    driver = Driver()
    driver.append(message("deleted"))
    held = driver.hold("t", message("one"), message("two", queue_id=1))
    before = [driver.half(row) for row in (0, 1)]
    driver = after(driver, later)
    for half in before:
        now = driver.half(half.half_offset)
        assert now.location > half.location
        assert now.log_offset == half.log_offset
        assert (now.size, now.crc, now.part) == (half.size, half.crc, half.part)
        assert (now.stored_at_ms, now.state) == (half.stored_at_ms, State.PREPARED)
    answer = driver.do(
        End(
            half_offset=0,
            resolution=Resolution.COMMIT,
            by="late",
            group="pay",
            log_offset=held.log_offsets[0],
        )
    )
    assert answer.refused is None
    assert (driver.bodies(), driver.bodies(queue_id=1)) == (["one"], ["two"])
    seen = driver.messages()[0]
    assert seen.prepared_offset == held.log_offsets[0]
    assert seen.stored_at_ms == driver.clock.now_ms()
    assert driver.commit(0, "again").by == "late"


def test_a_carried_half_can_be_rolled_back(later: str) -> None:
    driver = Driver()
    driver.hold("t")
    driver = after(driver, later)
    driver.roll_back(0)
    assert driver.bodies() == []
    code = driver.refused(End(half_offset=0, resolution=Resolution.COMMIT, by="x")).code
    assert code == "already_rolled_back"


def test_a_carried_half_is_found_by_its_transaction(later: str) -> None:
    driver = Driver()
    driver.hold("t", number=0)
    driver = after(driver, later)
    half = driver.reader.find_transaction("t")
    assert half is not None
    assert half.half_offset == 0
    assert driver.store.table.identity(half) == ("t", 0)
    joined = driver.hold("t", message("second"), number=1)
    driver.commit(joined.half_offset)
    assert driver.bodies() == ["t", "second"]


def test_a_carried_half_is_read_by_its_first_log_offset(later: str) -> None:
    driver = Driver()
    offset = driver.hold("t").log_offsets[0]
    driver = after(driver, later)
    located = driver.reader.at(offset)
    assert located is not None
    assert not located.is_visible
    assert decode(located.message).body == b"t"
    driver.commit(0)
    located = driver.reader.at(offset)
    assert located is not None
    assert located.is_visible
    assert decode(located.message) == driver.messages()[0]


def test_checks_and_parking_are_carried_too(later: str) -> None:
    driver = Driver()
    for name in ("checked", "parked", "resumed"):
        driver.hold(name)
    for _ in range(3):
        driver.do(CheckSent(half_offset=0, client="c"))
    driver.do(Park(half_offset=1, reason="by hand"))
    driver.do(Park(half_offset=2, reason="by hand"))
    driver.clock.advance(ms=SECOND)
    driver.do(Resume(half_offset=2, by="admin"))
    resumed_at_ms = driver.clock.now_ms()
    next_at_ms = driver.half(0).next_at_ms
    driver = after(driver, later)
    assert (driver.half(0).checks_sent, driver.half(0).next_at_ms) == (3, next_at_ms)
    assert [driver.half(row).state for row in range(3)] == [
        State.PREPARED,
        State.PARKED,
        State.PREPARED,
    ]
    assert driver.store.core.resumed_at_ms == {2: resumed_at_ms}
    driver.do(CheckSent(half_offset=0, client="c"))
    assert driver.half(0).checks_sent == 4
    driver.commit(1)
    assert driver.bodies() == ["parked"]


def test_a_transaction_of_several_requests_stays_one(later: str) -> None:
    driver = Driver()
    driver.hold("t", message("a"), message("b"), number=0)
    driver.hold("other")
    driver.hold("t", message("c"), number=1)
    driver = after(driver, later)
    driver.commit(0)
    assert driver.bodies() == ["a", "b", "c"]
    assert driver.half(2).state is State.PREPARED


def test_a_delay_is_carried_and_counts_from_the_commit(later: str) -> None:
    driver = Driver()
    driver.hold("t", message("now"), message("later", deliver_after_ms=HOUR))
    driver = after(driver, later)
    driver.commit(0)
    assert driver.bodies() == ["now"]
    driver.clock.advance(ms=HOUR)
    driver.release()
    assert driver.bodies() == ["now", "later"]


def test_a_committed_half_that_waits_for_its_time_is_carried(later: str) -> None:
    driver = Driver()
    driver.hold("t", message("now"), message("later", deliver_after_ms=MONTH))
    driver.commit(0)
    offset = driver.half(1).log_offset
    driver = after(driver, later)
    assert driver.bodies() == []
    located = driver.reader.at(offset)
    assert located is not None
    assert not located.is_visible
    driver.clock.advance(ms=MONTH)
    driver.release()
    assert driver.bodies() == ["later"]
    located = driver.reader.at(offset)
    assert located is not None
    assert located.is_visible
    assert decode(located.message) == driver.messages()[0]


def test_scheduled_messages_are_carried_though_their_request_is_partly_out(later: str) -> None:
    driver = Driver()
    now_ms = driver.clock.now_ms()
    driver.append(
        message("first", deliver_at_ms=now_ms + SECOND),
        message("second", deliver_at_ms=now_ms + MONTH),
    )
    driver.clock.advance(ms=SECOND)
    driver.release()
    assert driver.bodies() == ["first"]
    driver = after(driver, later)
    assert driver.bodies() == []
    driver.clock.advance(ms=MONTH)
    driver.release()
    assert driver.bodies() == ["second"]
    assert driver.messages()[0].queue_offset == 1
    driver.store.close()
    assert not check(driver.disk).is_damaged


def test_a_repeated_commit_of_a_carried_one_is_answered_as_before(later: str) -> None:
    """The log may forget who decided; that the transaction is decided is always known."""
    driver = Driver()
    driver.hold("t", message("later", deliver_after_ms=MONTH))
    driver.commit(0, by="me")
    driver = after(driver, later)
    assert driver.commit(0, by="again").repeated
    code = driver.refused(End(half_offset=0, resolution=Resolution.ROLLBACK, by="x")).code
    assert code == "already_committed"


def test_decided_messages_are_not_carried() -> None:
    driver = Driver()
    driver.hold("kept")
    driver.hold("committed")
    driver.commit(1)
    driver.hold("rolled back")
    driver.roll_back(2)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    assert driver.retain().carried == 1
    assert driver.bodies() == []


def test_more_halves_than_fit_into_one_round_are_carried() -> None:
    driver = Driver(chunk_rows=1024, segment_bytes_max=2**20)
    for number in range(3):
        driver.hold(f"t{number}", *[message("x")] * 1500)
    driver.append(message(bytes(600_000), topic="filler"))
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    assert driver.retain().carried == 4500
    for number in range(3):
        driver.commit(1500 * number)
    assert len(driver.bodies()) == 4500


def test_a_retention_that_must_carry_everything_still_comes_to_an_end() -> None:
    driver = Driver(retention_bytes=1)
    for number in range(20):
        driver.hold(f"t{number}", message(bytes(1000)))
    driver.roll_segment()
    for _ in range(3):
        driver.retain()
    for number in range(20):
        driver.commit(number)
    assert len(driver.messages()) == 20


# Late commits


def test_a_late_commit_lives_a_whole_retention_from_then_on() -> None:
    driver = Driver(copy_after_ms=HOUR)
    driver.hold("young")
    driver.hold("late")
    driver.clock.advance(ms=HOUR - 1)
    driver.commit(0)
    below = driver.roll_segment()
    driver.clock.advance(ms=RETENTION // 2)
    driver.commit(1)
    assert driver.half(0).location == driver.half(0).log_offset
    assert driver.half(1).location > below
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION - 1)
    driver.retain()
    assert driver.bodies() == ["late"]
    assert driver.closed_and_opened().bodies() == ["late"]


def test_a_late_commit_of_many_requests_copies_each_that_is_old() -> None:
    """The age of each request counts, whichever request the decision names."""
    driver = Driver(copy_after_ms=HOUR)
    driver.hold("t", message("old"), message("old too"), number=0)
    below = driver.roll_segment()
    driver.clock.advance(ms=50 * MINUTE)
    young = driver.hold("t", message("young"), number=1).half_offset
    driver.clock.advance(ms=50 * MINUTE)
    driver.commit(young)
    assert driver.half(0).location > below
    assert driver.half(young).location == driver.half(young).log_offset
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION - 90 * MINUTE)
    assert driver.retain().log_start == below
    assert driver.bodies() == ["old", "old too", "young"]


def test_a_late_batch_is_copied_and_lives_a_whole_retention() -> None:
    driver = Driver(copy_after_ms=HOUR)
    for name in ("a", "b"):
        for number in range(3):
            driver.hold(name, message(f"{name}{number}"), number=number, bulk=True)
    driver.clock.advance(ms=2 * HOUR)
    below = driver.roll_segment()
    driver.decide_batch(1, ("a", 2, 3), ("b", 2, 3))
    expected = [f"{name}{number}" for name in "ab" for number in range(3)]
    assert driver.bodies() == expected
    driver.clock.advance(ms=HOUR)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION - 1)
    assert driver.retain().log_start == below
    assert driver.bodies() == expected


def test_copies_that_are_always_due_are_made_once() -> None:
    driver = Driver(copy_after_ms=0)
    driver.hold("a", number=0, bulk=True)
    driver.hold("b")
    driver.decide_batch(1, ("a", 0, 1))
    driver.commit(1)
    assert driver.bodies() == ["a", "b"]


# Found again


def found(driver: Driver, key: str) -> list[bytes]:
    return [decode(one).body for one in driver.reader.find("orders", key, limit=10)]


def test_a_carried_message_is_found_by_all_its_names(later: str) -> None:
    driver = Driver()
    bodies = (
        message("one", keys="red blue", unique_key="u1"),
        message("two", keys="blue", unique_key="u2"),
    )
    held = driver.hold("t", *bodies)
    driver = after(driver, later)
    undecided = driver.reader.find_transaction("t")
    assert undecided is not None
    assert undecided.half_offset == 0
    assert found(driver, "red") == []
    driver.commit(0)
    # Its chunk left memory long ago, but the log still has its copy.
    settle_a_chunk(driver)
    driver = driver.closed_and_opened()
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION - 2 * MINUTE - SECOND)
    driver.retain()
    assert [found(driver, key) for key in ("red", "u1", "u2")] == [[b"one"], [b"one"], [b"two"]]
    assert found(driver, "blue") == [b"two", b"one"]
    for log_offset, body in zip(held.log_offsets, ("one", "two"), strict=True):
        located = driver.reader.at(log_offset)
        assert located is not None
        assert located.is_visible
        assert decode(located.message).body.decode() == body
    decided = driver.reader.find_transaction("t")
    assert decided is not None
    assert decided.state is State.COMMITTED
    driver.clock.advance(ms=2 * RETENTION)
    driver.append(message("new"))
    driver.roll_segment()
    driver.retain()
    assert found(driver, "blue") == []
    assert driver.reader.at(held.log_offsets[0]) is None


def settle_a_chunk(driver: Driver) -> None:
    """Fill up the chunk with rolled back rows, and let it leave memory."""
    for number in range(16):
        driver.roll_back(driver.hold(f"other {number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time passes", topic="clock"))
    driver.store.checkpoint()
    assert driver.store.table.place(0)[0] is None


def test_a_late_commit_is_found_by_its_key_once_though_the_log_has_it_twice() -> None:
    driver = Driver()
    held = driver.hold("t", message("late", keys="k"))
    driver.clock.advance(ms=2 * HOUR)
    driver.commit(0)
    assert driver.half(0).location > held.log_offsets[0]
    assert found(driver, "k") == [b"late"]
    assert found(driver, "t") == []
