"""A queue read in bulk gives the same messages as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from escrowmq.protocol.message.properties import tags_code
from escrowmq.store.queue.consume_queue import ConsumeQueue
from escrowmq.store.queue.lost import places
from escrowmq.store.reading import bulk_reading
from escrowmq.store.reading.bulk_reading import StoredBytes, read_stored
from escrowmq.transaction.core import Where
from tests.unit.store.helpers import HOUR, T0, Driver, message


def queue_of(driver: Driver, queue_id: int = 0) -> ConsumeQueue:
    queue = driver.reader.queue("orders", queue_id)
    assert queue is not None
    return queue


def read(
    driver: Driver,
    start: int = 0,
    end: int = 2**40,
    *,
    queue_id: int = 0,
    count_max: int = 1_000,
    bytes_max: int = 2**20,
    codes: list[int] | None = None,
) -> StoredBytes:
    queue = queue_of(driver, queue_id)
    return read_stored(
        driver.store,
        queue,
        start,
        min(end, queue.end),
        count_max=count_max,
        bytes_max=bytes_max,
        codes=codes,
    )


def records(found: StoredBytes) -> list[bytes]:
    ends = np.cumsum(found.entries["size"]).tolist()
    assert len(found.records) == (ends[-1] if ends else 0)
    starts = [0, *ends[:-1]]
    return [bytes(found.records[start:end]) for start, end in zip(starts, ends, strict=False)]


def check(driver: Driver, queue_id: int = 0) -> StoredBytes:
    """Compare a whole queue with what is read one by one."""
    queue = queue_of(driver, queue_id)
    found = read(driver, queue.start, queue_id=queue_id)
    expected, end = driver.reader.stored(
        queue, queue.start, queue.end, count_max=1_000, bytes_max=2**40
    )
    assert found.queue_offsets.tolist() == [one.queue_offset for one in expected]
    assert found.entries["visible_at_ms"].tolist() == [one.visible_at_ms for one in expected]
    assert records(found) == [one.record for one in expected]
    assert found.next_offset == end
    return found


def fill(driver: Driver) -> None:
    """Two queues, frames with one message and with many, and transactions committed in reverse."""
    for number in range(12):
        both = [message(f"m{number}", queue_id=queue_id, tags="x") for queue_id in range(2)]
        driver.append(*both, message(f"n{number}" * number))
    held = [driver.hold(f"t{number}", message(f"t{number}")).half_offset for number in range(12)]
    for row in reversed(held):
        driver.clock.advance(ms=10)
        driver.commit(row)
    driver.hold("undecided")
    driver.roll_back(driver.hold("rolled back").half_offset)


@pytest.mark.parametrize("gap_bytes_max", [0, 500, 10**6])
@pytest.mark.parametrize("block_bytes", [300, 10**6])
def test_messages_are_the_same_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, gap_bytes_max: int, block_bytes: int
) -> None:
    monkeypatch.setattr(bulk_reading, "GAP_BYTES_MAX", gap_bytes_max)
    monkeypatch.setattr(bulk_reading, "BLOCK_BYTES", block_bytes)
    driver = Driver()
    fill(driver)
    # The segments are small, so that reads cross their borders.
    assert len(driver.store.log.segments) > 2
    assert len(check(driver).entries) == 36
    check(driver, 1)
    # First some entries in files and some in memory, then all in files.
    driver.store.checkpoint()
    fill(driver)
    assert len(check(driver).entries) == 72
    check(driver.closed_and_opened())


def test_neighbours_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(segment_bytes_max=10**6)
    driver.append(*(message(f"m{number}") for number in range(100)))
    reads: list[int] = []
    read_log = driver.store.log.read

    def noted(log_offset: int, size: int) -> bytes:
        reads.append(size)
        return read_log(log_offset, size)

    monkeypatch.setattr(driver.store.log, "read", noted)
    assert len(records(read(driver))) == 100
    assert len(reads) == 1


def test_a_read_has_limits_and_says_where_to_go_on() -> None:
    driver = Driver()
    driver.append(*(message(bytes(500)) for _ in range(5)))
    size = int(read(driver).entries["size"][0])
    some = read(driver, 1, count_max=2)
    assert (some.queue_offsets.tolist(), some.next_offset) == ([1, 2], 3)
    some = read(driver, bytes_max=3 * size)
    assert (some.queue_offsets.tolist(), some.next_offset) == ([0, 1, 2], 3)
    some = read(driver, 3, 4)
    assert (some.queue_offsets.tolist(), some.next_offset) == ([3], 4)
    # At least one message, however large.
    some = read(driver, bytes_max=1)
    assert (some.queue_offsets.tolist(), some.next_offset) == ([0], 1)


def test_nothing_is_read_where_nothing_is() -> None:
    driver = Driver()
    driver.append(message())
    for start, end in ((1, 1), (0, 0), (1, 0)):
        found = read(driver, start, end)
        assert (records(found), found.next_offset) == ([], start)


def test_tags_are_filtered_by_their_codes() -> None:
    driver = Driver()
    driver.append(*(message(tags=tag) for tag in ("a", "b", "", "a", "c")))
    found = read(driver, codes=[tags_code("a"), tags_code("c")])
    assert (found.queue_offsets.tolist(), found.next_offset) == ([0, 3, 4], 5)
    found = read(driver, codes=[tags_code("a")], count_max=1)
    # Entries that do not match need not be examined again.
    assert (found.queue_offsets.tolist(), found.next_offset) == ([0], 3)
    assert read(driver, codes=[tags_code("z")]).next_offset == 5


def test_a_filtered_read_looks_at_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_reading, "FILTERED_MAX", 3)
    driver = Driver()
    driver.append(*(message(tags=tag) for tag in ("a", "b", "b", "b", "a")))
    found = read(driver, 1, codes=[tags_code("a")])
    assert (records(found), found.next_offset) == ([], 4)


def test_messages_that_repair_removed_are_passed_over() -> None:
    driver = Driver()
    driver.append(*(message(f"m{number}") for number in range(6)))
    entries = read(driver).entries["log_offset"].tolist()
    driver.store.lost.add(entries[2], entries[4])
    assert check(driver).queue_offsets.tolist() == [0, 1, 4, 5]
    # Places whose messages a repair could not identify.
    queue_of(driver).extend(6, places(2, Where(entries[5], entries[5], T0)))
    assert check(driver).queue_offsets.tolist() == [0, 1, 4, 5]
    assert read(driver).next_offset == 8


def test_an_entry_whose_copy_was_lost_is_passed_over_after_retention() -> None:
    driver = Driver()
    driver.append(message("old"))
    driver.roll_segment()
    driver.clock.advance(ms=25 * HOUR)
    driver.append(message("new"))
    driver.retain()
    driver.store.lost.add(10**9, 10**9 + 1)
    queue = queue_of(driver)
    queue.start = 0
    assert check(driver).queue_offsets.tolist() == [1]
