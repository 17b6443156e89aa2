"""The log in blocks of thousands of frames: their contents, and what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from escrowmq.store.log.frames import HEAD_BYTES, MAGIC, are_vouched, each_vouched, stated_heads
from escrowmq.store.reading import log_sweep
from escrowmq.store.reading.log_scan import LogScan
from escrowmq.store.reading.log_sweep import LogSweep, Lone, RecordChoice, Swept, lone_stretch
from escrowmq.transaction.commands import CheckSent, Park
from escrowmq.transaction.records import (
    Asked,
    Decided,
    NamedOrigin,
    NamedQueue,
    Parked,
    Prepared,
    Scheduled,
    Span,
    Stored,
)
from tests.unit.store.helpers import HOUR, SECOND, Driver, message
from tests.unit.store.test_log_scan import BODY_AT

ALL = RecordChoice(halves=True, decisions=True, others_with_messages=True, others_without=True)
EVERY = 2**30


def day() -> Driver:
    """Transactions of every kind between ordinary messages, in several segments."""
    driver = Driver()
    for number in range(6):
        one = driver.hold(f"lone {number}", message(b"x" * 100, keys="a b" * (number % 2)))
        driver.append(message("between"))
        driver.clock.advance(ms=SECOND)
        two = driver.hold(f"two {number}", message("1"), message("2", topic="stock"))
        driver.do(CheckSent(half_offset=two.half_offset, client="c"))
        driver.commit(one.half_offset, by=f"client {number}")
        driver.roll_back(two.half_offset)
    driver.append(message("later", deliver_at_ms=driver.clock.now_ms() + HOUR))
    driver.roll_back(driver.hold("rolled back").half_offset)
    driver.do(Park(half_offset=driver.hold("é").half_offset, reason="test"))
    assert len(driver.store.log.segments) > 1
    return driver


def swept(driver: Driver, wanted: RecordChoice = ALL, frames_max: int = 1_000) -> list[Swept]:
    """Sweep the whole log, part by part."""
    sweep = LogSweep(driver.store)
    parts = [sweep.sweep(0, EVERY, wanted, frames_max=frames_max)]
    while parts[-1].end < driver.store.durable_end:
        part = sweep.sweep(parts[-1].end, EVERY, wanted, frames_max=frames_max)
        assert part.end > parts[-1].end
        parts.append(part)
    return parts


def said(parts: list[Swept]) -> list[tuple[object, ...]]:
    """Everything that was swept, in log order: where and when, then what."""
    found: list[tuple[object, ...]] = []
    for part in parts:
        for lone in part.halves:
            columns = [lone.records[name].tolist() for name in ("row", "origin", "number", "queue")]
            found += zip(
                lone.offsets.tolist(), lone.at_ms.tolist(), *columns, lone.texts, strict=True
            )
        for lone in part.decisions:
            names = ("row", "state", "queue", "queue_offset")
            columns = [lone.records[name].tolist() for name in names]
            found += zip(
                lone.offsets.tolist(), lone.at_ms.tolist(), *columns, lone.texts, strict=True
            )
        found += [(one.log_offset, one.stored_at_ms, *one.records) for one in part.others]
    return sorted(found, key=lambda one: one[0])  # type: ignore[arg-type, return-value]


def rows(lone: Lone, *names: str) -> Iterator[tuple[object, ...]]:
    columns = [lone.records[name].tolist() for name in names]
    return zip(lone.offsets.tolist(), lone.at_ms.tolist(), *columns, lone.texts, strict=True)


def scanned(driver: Driver) -> list[tuple[object, ...]]:
    """The same from frames read one by one."""
    found: list[tuple[object, ...]] = []
    for one in LogScan(driver.store).frames(0, EVERY, with_messages=True):
        told: tuple[object, ...] = tuple(one.records)
        match one.records:
            case [Prepared(placed=placed) as half] if len(placed.sizes) == 1:
                text = half.transaction_id.encode()
                told = (half.first, half.origin, half.number, placed.queues[0], text)
            case [Decided(ranges=[(_, 1)]) as decided]:
                given = decided.given[0] if decided.given else Span(-1, -1, 0)
                told = (decided.head, decided.state, given.queue, given.first, decided.by.encode())
            case [] | [Stored()] | [Scheduled()]:
                continue
        found.append((one.log_offset, one.stored_at_ms, *told))
    return found


def frames(driver: Driver) -> list[tuple[int, int]]:
    """Where each frame starts and ends."""
    found = list(LogScan(driver.store).frames(0, EVERY))
    return [(one.log_offset, one.end) for one in found[:-1]]


def spoil(driver: Driver, log_offset: int) -> None:
    """Damage the frame at this offset."""
    segment = LogScan(driver.store).segment_of(log_offset)
    at = log_offset - segment.start + HEAD_BYTES - 1
    # Invert the bytes: with a random seed, a checksum may already have any given value.
    segment.file.write_at(at, bytes(255 - byte for byte in segment.file.read_at(at, 2)))


def test_columns_say_what_the_records_say() -> None:
    driver = day()
    assert said(swept(driver)) == scanned(driver)


@pytest.mark.parametrize("frames_max", [1, 2, 7])
@pytest.mark.parametrize("block_bytes", [1, 500, 2**20])
def test_whatever_is_read_at_a_time_nothing_is_left_out(
    frames_max: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sweep, "BLOCK_BYTES", block_bytes)
    driver = day()
    parts = swept(driver, frames_max=frames_max)
    assert all(part.frames <= frames_max for part in parts)
    assert said(parts) == scanned(driver)


def test_only_what_is_wanted_is_taken() -> None:
    driver = day()
    (halves,) = swept(driver, RecordChoice(halves=True))
    assert halves.decisions == []
    assert halves.others == []
    assert sum(len(lone.texts) for lone in halves.halves) == halves.frames == 7
    (decisions,) = swept(driver, RecordChoice(decisions=True))
    assert sum(len(lone.texts) for lone in decisions.decisions) == decisions.frames == 7
    (with_messages,) = swept(driver, RecordChoice(others_with_messages=True))
    # Ordinary messages are left out.
    kinds = {type(record) for one in with_messages.others for record in one.records}
    assert kinds == {NamedQueue, NamedOrigin, Prepared}
    (without,) = swept(driver, RecordChoice(others_without=True))
    kinds = {type(record) for one in without.others for record in one.records}
    assert kinds == {Asked, Decided, Parked}


def test_it_ends_when_time_is_over_but_not_before_something_was_read() -> None:
    driver = day()
    part = LogSweep(driver.store).sweep(0, EVERY, ALL, frames_max=1_000, is_over=lambda: True)
    # One block, which is a segment.
    assert part.end == driver.store.log.segments[1].start


def test_ranges_that_begin_anywhere_tell_everything_once() -> None:
    driver = day()
    sweep = LogSweep(driver.store)
    whole, end = said(swept(driver)), driver.store.durable_end
    for border in range(1, end, 13):
        halves = [
            sweep.sweep(0, border, ALL, frames_max=1_000),
            sweep.sweep(border, end, ALL, frames_max=1_000),
        ]
        assert said(halves) == whole
        assert [part.unreadable for part in halves] == [[], []]


def test_damage_is_told_by_the_range_in_which_it_starts() -> None:
    driver = day()
    sweep = LogSweep(driver.store)
    # The first frame of the log, two neighbors, the last and first of two segments, the last of
    # all.
    second = driver.store.log.segments[1].start
    places = frames(driver)
    last_before = next(at for at, (_, end) in enumerate(places) if end == second)
    victims = [0, 4, 5, last_before, last_before + 1, len(places) - 1]
    for victim in victims:
        spoil(driver, places[victim][0])
    expected = joined([places[victim] for victim in victims])
    for border in (*range(0, driver.store.durable_end, 17), *(start for start, _ in places)):
        parts = [
            sweep.sweep(0, border, ALL, frames_max=1_000),
            sweep.sweep(border, EVERY, ALL, frames_max=1_000),
        ]
        told = [(at, at + length) for part in parts for at, length in part.unreadable]
        assert joined(told) == expected, border
        assert len(told) == len(set(told))
        assert all(at < border for at, _ in parts[0].unreadable)


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, with adjacent ones joined; none may overlap."""
    found: list[tuple[int, int]] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            start, _ = found.pop()  # noqa: PLW2901 - joined, they start where the first does
        assert not found or found[-1][1] < start
        found.append((start, end))
    return found


def test_a_page_that_ends_within_damage_is_not_told_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sweep, "BLOCK_BYTES", 1)
    driver = Driver(segment_bytes_max=1024 * 1024)
    driver.hold("a")
    driver.append(message(b"y" * 600_000))
    driver.hold("b")
    (start, end) = frames(driver)[1]
    spoil(driver, start)
    sweep = LogSweep(driver.store)
    told, at, pages = [], 0, 0
    while at < driver.store.durable_end:
        part = sweep.sweep(at, EVERY, ALL, frames_max=1_000, is_over=lambda: True)
        told += part.unreadable
        at, pages = part.end, pages + 1
    assert pages > 4
    # Its length was not known when it was reported.
    assert [where for where, _ in told] == [start]
    whole = sweep.sweep(0, EVERY, ALL, frames_max=1_000)
    assert whole.unreadable == [(start, end - start)]
    assert len(said([whole])) == 2


def test_within_a_very_large_frame_nothing_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sweep, "BEFORE_BYTES", (16, 64))
    driver = Driver(segment_bytes_max=1024 * 1024)
    driver.hold("a", message(b"y" * 600_000))
    driver.hold("b")
    part = LogSweep(driver.store).sweep(1_000, EVERY, ALL, frames_max=1_000)
    assert part.unreadable == []
    assert [lone.texts for lone in part.halves] == [[b"b"]]


def test_a_body_that_looks_like_many_frames_hides_the_one_around_it() -> None:
    body_at = HEAD_BYTES + BODY_AT
    fakes = b"".join(
        MAGIC + b"\x01" + bytes(11) + place.to_bytes(8, "little") + bytes(40)
        for place in range(body_at, body_at + 64 * 40, 64)
    )
    driver = Driver(segment_bytes_max=1024 * 1024)
    driver.append(message(fakes))
    driver.hold("b")
    (_, end) = frames(driver)[0]
    part = LogSweep(driver.store).sweep(end - 50, EVERY, ALL, frames_max=1_000)
    assert part.unreadable == []
    assert part.frames == 1


def test_ranges_that_repair_removed_are_told_with_the_damage() -> None:
    driver = day()
    places = frames(driver)
    driver.store.lost.add(*places[7])
    spoil(driver, places[3][0])
    spoil(driver, places[9][0])
    (part,) = swept(driver)
    assert part.unreadable == [(places[at][0], places[at][1] - places[at][0]) for at in (3, 7, 9)]


def test_heads_by_the_thousand_end_where_frames_one_by_one_end() -> None:
    driver = day()
    seed, segment = driver.store.seed, driver.store.log.segments[0]
    data = segment.file.read_at(0, segment.size)
    for at in (*range(0, len(data), 5), len(data)):
        for spoilt in (data[:at], data[:at] + bytes(len(data) - at)):
            expected = list(each_vouched(spoilt, 0, 0, seed))
            starts, heads = stated_heads(spoilt, 0)
            is_vouched = [*are_vouched(spoilt, starts, heads, seed).tolist(), False]
            count = is_vouched.index(False)
            assert starts[:count].tolist() == [one[0] for one in expected]
            assert heads["length"][:count].tolist() == [one[1] for one in expected]
    # Intact frames, but not at the offset that they state.
    starts, _ = stated_heads(data, 1)
    assert starts.tolist() == []


def test_damage_in_another_lists_lone_records_is_left_to_that_list() -> None:
    driver = day()
    places = frames(driver)
    (whole,) = swept(driver)
    victim = int(whole.decisions[0].offsets[1])
    (start, end) = next(place for place in places if place[0] == victim)
    driver.store.log.segments[0].file.write_at(end - 1, b"?")
    (halves,) = swept(driver, RecordChoice(halves=True, others_with_messages=True))
    assert halves.unreadable == []
    (decisions,) = swept(driver, RecordChoice(decisions=True, others_without=True))
    assert decisions.unreadable == [(start, end - start)]


@pytest.mark.parametrize(
    "wanted",
    [
        RecordChoice(halves=True, others_with_messages=True),
        RecordChoice(decisions=True, others_without=True),
        RecordChoice(others_without=True),
    ],
)
def test_no_flipped_bit_hides_what_was_asked_for(wanted: RecordChoice) -> None:
    driver = day()
    segment = driver.store.log.segments[0]
    (whole,) = swept(driver, wanted)
    data = segment.file.read_at(0, segment.size)
    # One frame of each kind: all bytes of its head, and the first two of its records.
    for start, _ in frames(driver)[6:13]:
        records_at = start + int.from_bytes(data[start + 12 : start + 16], "little")
        for at in (*range(start, start + HEAD_BYTES), records_at, records_at + 1):
            for bit in range(8):
                segment.file.write_at(at, bytes([data[at] ^ 1 << bit]))
                part = LogSweep(driver.store).sweep(0, len(data), wanted, frames_max=1_000)
                told = [one for one in said([whole]) if one[0] < len(data)]  # type: ignore[operator]
                assert part.unreadable or said([part]) == told, (at - start, bit)
            segment.file.write_at(at, data[at : at + 1])


def stretches(driver: Driver, end: int = EVERY) -> list[Swept]:
    """The stretch of lone records that begins at each frame."""
    store = driver.store
    scan = LogScan(store)
    return [
        lone_stretch(bytes(scan.block(at, EVERY)), at, end, store.seed) for at, _ in frames(driver)
    ]


def test_a_stretch_of_lone_records_needs_no_store() -> None:
    driver = day()
    ends = dict(frames(driver))
    told = said(swept(driver))
    others = {one.log_offset for part in swept(driver) for one in part.others}
    segments = {one.start for one in driver.store.log.segments}
    for (at, _), stretch in zip(ends.items(), stretches(driver), strict=True):
        stop = next((one for one in ends if one >= at and one in others), driver.store.durable_end)
        # A block is part of one segment.
        stop = min([stop, *(one for one in segments if one > at)])
        assert stretch.end == stop
        assert stretch.frames == sum(at <= one < stop for one in ends)
        within = range(at, stop)
        assert said([stretch]) == [one for one in told if one[0] in within]


def test_a_stretch_ends_where_it_shall_and_before_what_is_damaged() -> None:
    driver = day()
    starts = [at for at, _ in frames(driver)]
    whole = stretches(driver)
    number = next(at for at, one in enumerate(whole) if one.frames > 1)
    # A frame that starts before the end is included.
    cut = stretches(driver, starts[number + 1] + 1)[number]
    assert cut.frames == min(2, whole[number].frames)
    spoil(driver, starts[number + 1])
    assert stretches(driver)[number].frames == 1
    assert stretches(driver)[number + 1].frames == 0
    assert lone_stretch(b"no frame", 0, EVERY, driver.store.seed) == Swept(0)
