"""Overdue messages are released in order of due time, over chunks and survivors, in slices."""

from __future__ import annotations

from random import Random

import numpy as np

from escrowmq.protocol.message.stored_message import decode
from escrowmq.store.repair.inspect import check
from escrowmq.store.table.chunk import Chunk
from escrowmq.transaction.commands import CarryAlone, Release
from escrowmq.transaction.records import NEVER, UNNUMBERED
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, SECOND, T0, Driver, message, releasable


def wait(driver: Driver, *after_ms: int) -> None:
    """Append each message alone; its body is its due time, counted from ``T0``."""
    for after in after_ms:
        driver.append(message(f"{after}", deliver_at_ms=T0 + after))


def released(driver: Driver, limit: int) -> list[str]:
    """Release everything due, at most `limit` at a time; return the visible bodies in order."""
    while rows := releasable(driver.store.table, driver.clock.now_ms(), limit):
        assert len(rows) <= limit
        driver.do(Release(half_offsets=tuple(rows)))
    return driver.bodies()


def test_overdue_messages_leave_in_the_order_of_their_times_over_all_chunks() -> None:
    driver = Driver(chunk_rows=8)
    rng = Random(7)
    times = [rng.randrange(1, 40) * SECOND for _ in range(100)]
    wait(driver, *times)
    driver.clock.advance(ms=MINUTE)
    assert released(driver, 7) == [str(after) for after in sorted(times)]
    assert driver.store.table.needed == 0


def test_messages_of_the_same_time_leave_in_the_order_of_their_half_offsets() -> None:
    driver = Driver(chunk_rows=8)
    driver.append(*(message(f"{number}", deliver_at_ms=T0 + 5) for number in range(30)))
    driver.clock.advance(ms=10)
    assert released(driver, 4) == [str(number) for number in range(30)]


def test_survivors_and_chunks_leave_in_one_order() -> None:
    driver = Driver(chunk_rows=8, copy_after_ms=24 * HOUR)
    wait(driver, 3 * HOUR)
    for number in range(7):
        driver.roll_back(driver.hold(f"t{number}").half_offset)
    wait(driver, HOUR)
    for number in range(7):
        driver.roll_back(driver.hold(f"u{number}").half_offset)
    driver.clock.advance(ms=2 * MINUTE)
    driver.append(message("time", queue_id=1))
    driver.store.checkpoint()
    assert list(driver.store.table.survivors.rows) == [0, 8]
    wait(driver, 4 * HOUR, 2 * HOUR, HOUR)
    driver.clock.advance(ms=5 * HOUR)
    assert releasable(driver.store.table, driver.clock.now_ms(), 2) == [8, 18]
    hours = [HOUR, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]
    assert released(driver, 2) == [str(after) for after in hours]


def test_messages_that_come_due_during_a_release_take_their_place_in_the_order() -> None:
    driver = Driver(chunk_rows=8)
    wait(driver, *(SECOND * number for number in range(1, 13)))
    driver.clock.advance(ms=8 * SECOND)
    first = releasable(driver.store.table, driver.clock.now_ms(), 4)
    driver.do(Release(half_offsets=tuple(first)))
    # The sorted chunks hold later times than these.
    wait(driver, 8 * SECOND + 1, 8 * SECOND + 500)
    driver.clock.advance(ms=4 * SECOND)
    seconds = [*range(1000, 9000, 1000), 8001, 8500, *range(9000, 13000, 1000)]
    assert released(driver, 3) == list(map(str, seconds))


def test_a_crash_between_two_slices_keeps_the_order() -> None:
    driver = Driver(chunk_rows=8)
    rng = Random(3)
    times = [rng.randrange(1, 40) for _ in range(40)]
    wait(driver, *times)
    driver.clock.advance(ms=MINUTE)
    driver.do(Release(half_offsets=tuple(releasable(driver.store.table, T0 + MINUTE, 11))))
    assert released(driver.crashed(), 5) == list(map(str, sorted(times)))
    driver.do(Release(half_offsets=tuple(releasable(driver.store.table, T0 + MINUTE, 11))))
    assert released(driver.closed_and_opened(), 5) == list(map(str, sorted(times)))


def test_a_slice_sorts_one_chunk_at_a_time_and_none_twice() -> None:
    driver = Driver(chunk_rows=8)
    wait(driver, *range(40, 0, -1))
    wait(driver, *([HOUR] * 8))
    driver.clock.advance(ms=MINUTE)
    releases, now_ms = driver.store.table.releases, driver.clock.now_ms()
    sorted_chunks = 0
    while releases.sort_one(now_ms):
        sorted_chunks += 1
    assert sorted_chunks == 5
    while rows := releases.first(now_ms, 6):
        driver.do(Release(half_offsets=tuple(rows)))
        assert not releases.sort_one(now_ms)
    assert driver.bodies() == [str(after) for after in range(1, 41)]


def chunk_of(*next_at_ms: int) -> Chunk:
    """Committed rows that wait for these times."""
    chunk = Chunk(16, 16)
    chunk.count = len(next_at_ms)
    chunk.view("next_at_ms")[:] = next_at_ms
    chunk.view("state")[:] = State.COMMITTED
    chunk.view("size")[:] = 1
    chunk.needed = len(next_at_ms)
    return chunk


def test_a_chunk_passes_over_rows_that_changed_since_it_was_sorted() -> None:
    chunk = chunk_of(50, 30, 40, 10, 20, 90)
    chunk.sort_releases(60)
    assert chunk.release_from_ms == 90
    assert chunk.releases.from_ms == 10
    chunk.set_next(4, 35)
    assert chunk.release_from_ms == 35
    rows, due = chunk.next_releases(45, 3)
    assert (rows.tolist(), due.tolist()) == ([19, 17, 18], [10, 30, 40])
    chunk.release_rows(rows - 16)
    assert chunk.needed == 3
    rows, due = chunk.next_releases(45, 3)
    assert rows.tolist() == due.tolist() == []
    chunk.sort_releases(60)
    rows, _ = chunk.next_releases(60, 3)
    assert rows.tolist() == [20, 16]
    chunk.release_rows(rows - 16)
    assert chunk.next_releases(60, 1)[0].tolist() == []
    assert chunk.releases.from_ms == NEVER


def test_a_released_row_that_is_undecided_stays_needed() -> None:
    """A damaged log may release an undecided row; that does not decide it."""
    chunk = chunk_of(50, 30)
    chunk.view("state")[0] = State.PREPARED
    chunk.release_rows(np.array([0, 1]))
    assert chunk.needed == 1


def test_a_release_of_a_deleted_message_is_replayed() -> None:
    """The record that released it is younger than its bytes, and may outlive them."""
    driver = Driver()
    wait(driver, 30 * MINUTE)
    driver.roll_segment()
    driver.clock.advance(ms=31 * MINUTE)
    assert released(driver, 9) == [str(30 * MINUTE)]
    driver.append(message("later"))
    driver.roll_segment()
    driver.clock.advance(ms=24 * HOUR - 20 * MINUTE)
    assert driver.retain().segments
    assert driver.bodies() == ["later"]
    driver.store.close()
    for name in driver.disk.list("statetable"):
        driver.disk.remove(f"statetable/{name}")
    after = driver.opened_again()
    assert after.found.rebuilt_because
    assert after.bodies() == ["later"]


def test_messages_that_came_alone_are_copied_in_one_frame() -> None:
    driver = Driver(segment_bytes_max=64 * 1024)
    for number in range(5):
        due_ms = T0 + 2 * HOUR + number
        driver.append(
            message(f"{number}", keys=f"k{number}", unique_key=f"u{number}", deliver_at_ms=due_ms)
        )
    driver.hold("t", message("half", deliver_after_ms=2 * HOUR))
    driver.commit(5)
    driver.clock.advance(ms=3 * HOUR)
    driver.append(message("now"))
    rows = tuple(releasable(driver.store.table, driver.clock.now_ms(), 9))
    decision = driver.do(Release(half_offsets=rows))
    assert decision.carries == (5,)
    assert [half.half_offset for half in decision.carries_alone] == [0, 1, 2, 3, 4]
    assert not check(driver.disk).findings
    for after in (driver, driver.crashed()):
        assert after.bodies() == ["now", "0", "half", *"1234"]
        assert all(after.half(row).location > after.half(5).location for row in range(5))
        # Each copy is found by its key, and belongs to no transaction.
        for number in range(5):
            (one,) = after.reader.find("orders", f"k{number}", limit=9)
            assert decode(one).body == b"%d" % number
            assert after.reader.find_transaction(f"u{number}") is None
        assert after.store.table.identity(after.half(3)) == ("", UNNUMBERED)


def test_copies_without_their_release_are_copied_again() -> None:
    """A crash may cut the log between the two frames."""
    driver = Driver(segment_bytes_max=64 * 1024)
    wait(driver, 2 * HOUR, 2 * HOUR)
    driver.clock.advance(ms=3 * HOUR)
    driver.do(CarryAlone(halves=(driver.half(0), driver.half(1))))
    after = driver.crashed()
    assert after.bodies() == []
    assert released(after, 9) == [str(2 * HOUR)] * 2
    assert after.picture() == after.crashed().picture()
