"""A scan finds frames from any offset, in small reads, and by time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from escrowmq.store.log.frames import HEAD_BYTES, MAGIC
from escrowmq.store.reading import log_scan
from escrowmq.store.reading.log_scan import LogScan, Passed
from escrowmq.transaction.commands import Append
from escrowmq.transaction.records import Decided, Prepared
from tests.unit.store.helpers import SECOND, T0, Driver, message

BODY_AT = 88
"""Where the body starts in a message from an IPv4 address."""


def shop(count: int = 20, body: bytes = b"x" * 100) -> Driver:
    """Transactions, one per second, in several segments."""
    driver = Driver()
    for number in range(count):
        held = driver.hold(f"t{number}", message(body, unique_key=f"t{number}"))
        driver.commit(held.half_offset)
        driver.clock.advance(ms=SECOND)
    return driver


def decided(frames: list[Passed]) -> list[int]:
    return [record.head for one in frames for record in one.records if isinstance(record, Decided)]


def test_all_decisions_are_found_from_the_start() -> None:
    driver = shop()
    assert len(driver.store.log.segments) > 1
    frames = list(LogScan(driver.store).frames(0, 2**30))
    assert decided(frames) == list(range(20))
    assert frames[-1] == Passed(driver.store.durable_end, driver.store.durable_end, 0, [])
    assert all(one.end == after.log_offset for one, after in pairwise(frames))


def test_from_any_offset_the_next_frame_is_found() -> None:
    driver = shop()
    scan = LogScan(driver.store)
    starts = [one.log_offset for one in scan.frames(0, 2**30)]
    for offset in range(driver.store.durable_end + 1):
        expected = next(start for start in starts if start >= offset)
        assert scan.next_frame(offset) == expected


def test_little_is_read_at_a_time_and_nothing_is_left_out() -> None:
    driver = shop()
    scan = LogScan(driver.store)
    heads, offset = [], 0
    while offset < driver.store.durable_end:
        frames = list(scan.frames(offset, 500))
        assert frames[-1].log_offset > offset
        heads += decided(frames)
        offset = frames[-1].log_offset
    assert heads == list(range(20))


def test_frames_that_are_not_durable_are_not_scanned() -> None:
    driver = shop(3)
    before = driver.store.durable_end
    driver.store.execute(Append(messages=(message("new"),)), driver.clock.now_ms())
    driver.store.write()
    scan = LogScan(driver.store)
    assert list(scan.frames(0, 2**30))[-1].log_offset == before
    assert scan.next_frame(before + 7) == before
    assert list(scan.frames(before)) == [Passed(before, before, 0, [])]


def test_a_long_frame_is_passed_in_several_bites() -> None:
    driver = Driver()
    driver.append(message(b"y" * 3_000))
    driver.commit(driver.hold("t").half_offset)
    scan = LogScan(driver.store)
    at, bites = 1, 0
    while (after := scan.next_frame(at, 500)) and after != at:
        at, bites = after, bites + 1
    assert bites > 3
    assert decided(list(scan.frames(1, 2**30))) == [0]


@pytest.mark.parametrize("count", [1, 40])
def test_a_body_that_looks_like_a_frame_is_not_taken_for_one(count: int) -> None:
    # A sender can predict its body's log offset: after the heads of frame and message.
    body_at = HEAD_BYTES + BODY_AT
    fakes = b"".join(
        MAGIC + b"\x01" + bytes(11) + place.to_bytes(8, "little") + bytes(40)
        for place in range(body_at, body_at + 64 * count, 64)
    )
    driver = Driver(segment_bytes_max=1024 * 1024)
    driver.append(message(fakes + MAGIC * 10))
    assert driver.store.log.peek(body_at, 4) == MAGIC
    driver.commit(driver.hold("t").half_offset)
    scan = LogScan(driver.store)
    assert scan.next_frame(1) > body_at
    assert decided(list(scan.frames(1, 2**30))) == [0]


def test_frames_damaged_since_the_start_are_passed_over() -> None:
    driver = shop(6)
    scan = LogScan(driver.store)
    frames = list(scan.frames(0, 2**30))
    victim = frames[3]
    segment = driver.store.log.segments[0]
    segment.file.write_at(victim.log_offset - segment.start + 41, b"\xff\xff")
    assert decided(list(scan.frames(0, 2**30))) == [0, 2, 3, 4, 5]


def test_the_first_frame_of_a_time_is_found() -> None:
    driver = shop(60)
    scan = LogScan(driver.store)
    frames = list(scan.frames(0, 2**30))
    for number in range(60):
        at_ms = T0 + number * SECOND
        for asked_ms in (at_ms, at_ms - SECOND + 1):
            expected = next(one.log_offset for one in frames if one.stored_at_ms >= asked_ms)
            assert scan.offset_at(asked_ms) == expected
    assert scan.offset_at(0) == 0
    assert scan.offset_at(T0 + 10**9) == driver.store.durable_end


def test_the_time_is_found_in_one_long_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_scan, "_PROBE_BYTES", 512)
    driver = Driver(segment_bytes_max=1024 * 1024)
    for number in range(40):
        driver.append(message(b"z" * (2_000 if number == 20 else 50)))
        driver.clock.advance(ms=SECOND)
    scan = LogScan(driver.store)
    frames = list(scan.frames(0, 2**30))
    for number in range(40):
        assert scan.offset_at(T0 + number * SECOND) == frames[number].log_offset


def test_an_empty_log_has_no_time() -> None:
    scan = LogScan(Driver().store)
    assert scan.offset_at(T0) == 0
    assert list(scan.frames(0)) == [Passed(0, 0, 0, [])]


def test_half_messages_are_told_only_on_request() -> None:
    driver = shop(3)
    scan = LogScan(driver.store)
    frames = list(scan.frames(0, 2**30, with_messages=True))
    held = [record for one in frames for record in one.records if isinstance(record, Prepared)]
    assert [record.transaction_id for record in held] == ["t0", "t1", "t2"]
    assert len(decided(frames)) == 3
