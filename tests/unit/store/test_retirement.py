"""Segments retire one after the other, in short steps, and only if there is room for what stays."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import StoreUnusable
from escrowmq.store import carrying, needed
from escrowmq.store.needed import needed_rows
from escrowmq.store.retention import do_step, exceeding_bytes, next_step, retain, retirements
from escrowmq.store.retirement import Aside, Carrying, Checkpointing, Removed, Step, Waits
from escrowmq.store.space import Level
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import Carry, Decision
from escrowmq.transaction.records import Moved
from escrowmq.transaction.states import State
from tests.unit.store.helpers import HOUR, MINUTE, Driver, faulty, message

RETENTION = 24 * HOUR
MIN = 64 * 1024


def with_old_halves(segments: int, halves: int, **config: int) -> Driver:
    """So many old segments, each with so many undecided half messages, and a young one."""
    driver = Driver(None, clock=None, policy=None, **config)
    for segment in range(segments):
        for number in range(halves):
            driver.hold(f"{segment}-{number}", message(f"{segment}-{number}" + "." * 500))
        driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    return driver


def used_bytes(disk: FaultyDisk) -> int:
    return sum(map(len, disk.snapshot().values()))


def steps_of(driver: Driver, removed: Removed) -> list[Step]:
    """All steps of a run, done one by one."""
    now_ms = driver.clock.now_ms()
    steps = retirements(driver.store, now_ms, removed)
    done: list[Step] = []
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        done.append(step)
    return done


# One segment after the other


def test_a_segment_is_deleted_before_the_next_one_is_carried() -> None:
    driver = with_old_halves(segments=4, halves=3)
    kinds = [type(step) for step in steps_of(driver, Removed(log_start=0))]
    order = [kind for kind in kinds if kind in (Carrying, Checkpointing)]
    assert order == [Carrying, Checkpointing, Checkpointing] * 4


def test_a_disk_with_room_for_one_segment_retires_them_all() -> None:
    """The needed halves of all of them together would not fit."""
    driver = with_old_halves(segments=12, halves=6, free_bytes_min=MIN)
    driver.store.checkpoint()
    disk = faulty(driver)
    all_needed = driver.store.table.needed_bytes
    room = all_needed // 2
    disk.capacity_bytes = used_bytes(disk) + MIN + room
    before = len(driver.store.log.segments)
    removed = driver.retain()
    assert (removed.waits, removed.carried) == (Waits.NO, 72)
    assert removed.segments >= before - 2
    assert sorted(needed_rows(driver.store.table)) == list(range(72))
    for row in range(72):
        driver.commit(row)
    assert len(driver.bodies()) == 72


def test_segments_that_hold_nothing_needed_go_together() -> None:
    driver = Driver()
    for _ in range(3):
        driver.roll_segment()
    driver.hold("needed")
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    removed = Removed(log_start=0)
    kinds = [type(step) for step in steps_of(driver, removed)]
    assert kinds.count(Checkpointing) == 4
    assert (removed.segments, removed.carried) == (4, 1)


def test_commits_between_the_slices_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 1)
    driver = with_old_halves(segments=1, halves=6)
    now_ms = driver.clock.now_ms()
    steps = retirements(driver.store, now_ms, Removed(log_start=0))
    decisions: list[Decision] | None = None
    slices = 0
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        if isinstance(step, Carrying):
            slices += 1
            # One that is carried already, and one that is not yet.
            driver.commit({1: 0, 2: 5}.get(slices, 1))
    assert slices == 5
    assert driver.store.log.start > 0
    seen = sorted(body.rstrip(".") for body in driver.bodies())
    assert seen == ["0-0", "0-1", "0-5"]
    assert needed_rows(driver.store.table) == [2, 3, 4]


def test_slices_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "SLICE_BYTES_MAX", 2_000)
    driver = with_old_halves(segments=1, halves=5, segment_bytes_max=65_536)
    sizes = [
        len(step.commands)
        for step in steps_of(driver, Removed(log_start=0))
        if isinstance(step, Carrying)
    ]
    assert sizes == [2, 2, 1]
    monkeypatch.setattr(carrying, "SLICE_BYTES_MAX", 10**9)
    weight = carrying.REQUEST_WEIGHT + 1
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 3 * weight)
    driver.roll_segment()
    driver.clock.advance(ms=2 * RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=2 * RETENTION)
    sizes = [
        len(step.commands)
        for step in steps_of(driver, Removed(log_start=0))
        if isinstance(step, Carrying)
    ]
    assert sizes == [3, 2]


def test_rows_of_the_map_are_looked_at_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made anew from a log without their first frames, rows are in the map."""
    monkeypatch.setattr(needed, "SURVIVORS_SLICE", 2)
    driver = with_old_halves(segments=2, halves=5)
    driver.retain()
    faulty(driver).flip_bit("checkpoint", 60, 0)
    after = driver.opened_again()
    assert len(after.store.table.survivors.rows) == 10
    assert after.store.table.needed_bytes == driver.store.table.needed_bytes
    assert needed_rows(after.store.table) == list(range(10))
    after.clock.advance(ms=2 * RETENTION)
    after.roll_segment()
    after.clock.advance(ms=2 * RETENTION)
    assert after.retain().carried == 10
    after.commit(3)
    assert after.store.table.needed_bytes < driver.store.table.needed_bytes


def test_nothing_is_deleted_while_that_is_not_allowed() -> None:
    driver = with_old_halves(segments=2, halves=1)
    removed = Removed(log_start=0)
    steps = retirements(driver.store, driver.clock.now_ms(), removed, lambda: False)
    assert next_step(steps, None) is None
    assert (removed.waits, driver.store.log.start) == (Waits.FOR_PERMISSION, 0)


# Requests in parts


def large_request(monkeypatch: pytest.MonkeyPatch, **config: int) -> Driver:
    """An old request of ten messages, which is carried in parts of four."""
    monkeypatch.setattr(carrying, "PART_ROWS_MAX", 4)
    driver = Driver(None, clock=None, policy=None, **config)
    driver.hold("large", *(message(f"{number}") for number in range(10)))
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    return driver


def carries_of(steps: list[Step]) -> list[Carry]:
    return [command for step in steps if isinstance(step, Carrying) for command in step.commands]


def test_a_large_request_is_carried_in_parts_the_first_row_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = large_request(monkeypatch)
    carries = carries_of(steps_of(driver, Removed(log_start=0)))
    assert [one.part for one in carries] == [(6, 10), (2, 6), (0, 2)]
    assert driver.store.core.find("large") is not None
    crashed = driver.crashed()
    for now in (crashed, driver.closed_and_opened()):
        now.commit(0)
        assert now.bodies() == [f"{number}" for number in range(10)]


def test_parts_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrying, "SLICE_BYTES_MAX", 1_000)
    driver = large_request(monkeypatch)
    carries = carries_of(steps_of(driver, Removed(log_start=0)))
    assert [one.part for one in carries] == [(8, 10), (6, 8), (4, 6), (2, 4), (0, 2)]


def test_a_request_that_is_carried_in_part_is_copied_whole_by_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries must not point into the segment that is about to go."""
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 1)
    driver = large_request(monkeypatch)
    now_ms = driver.clock.now_ms()
    steps = retirements(driver.store, now_ms, Removed(log_start=0))
    decisions: list[Decision] | None = None
    slices = 0
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        slices += isinstance(step, Carrying)
        if slices == 1 and isinstance(step, Carrying):
            driver.commit(0)
    assert driver.store.log.start > 0
    assert driver.bodies() == [f"{number}" for number in range(10)]
    assert driver.crashed().bodies() == driver.bodies()


def test_the_age_of_a_request_in_parts_counts_from_the_first_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 1)
    driver = large_request(monkeypatch, copy_after_ms=HOUR)
    began_at_ms = driver.store.last_at_ms
    steps = retirements(driver.store, driver.clock.now_ms(), Removed(log_start=0))
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        driver.clock.advance(ms=10 * MINUTE)
        decisions = do_step(driver.store, step, driver.clock.now_ms())
    assert driver.store.core.moved_at_ms == {0: began_at_ms}


def test_parts_that_were_left_behind_are_carried_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention waited for room between two parts, and the first of them has become old."""
    driver = large_request(monkeypatch)
    driver.do(Carry(first=0, part=(6, 10), since_ms=driver.clock.now_ms()))
    removed = Removed(log_start=0)
    carries = carries_of(steps_of(driver, removed))
    assert [(one.part, one.since_ms) for one in carries] == [
        ((2, 6), carrying.LONG_AGO_MS),
        ((0, 2), carrying.LONG_AGO_MS),
    ]
    assert removed.carried == 6
    driver.commit(0)
    assert driver.bodies() == [f"{number}" for number in range(10)]


def test_a_part_says_when_the_first_was_carried_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = large_request(monkeypatch)
    since_ms = driver.clock.now_ms()
    decision = driver.do(Carry(first=0, part=(0, 2), since_ms=since_ms))
    (moved,) = decision.records
    assert isinstance(moved, Moved)
    assert (len(moved.rows), moved.since_ms) == (2, since_ms)


# Room


def nearly_full(driver: Driver, room: int) -> FaultyDisk:
    """Its disk, with so much room above what even retention leaves free."""
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + disk.allocated("reserve") + MIN // 4 + room
    return disk


def test_without_room_for_what_must_be_carried_nothing_is_carried_and_nothing_breaks() -> None:
    driver = with_old_halves(segments=3, halves=6, free_bytes_min=MIN)
    disk = nearly_full(driver, -MIN // 8)
    end = driver.store.log.end
    removed = driver.retain()
    assert (removed.waits, removed.segments, removed.carried) == (Waits.FOR_ROOM, 0, 0)
    assert removed.missing_bytes > 0
    assert driver.store.log.end == end
    disk.capacity_bytes = disk.capacity_bytes or 0
    disk.capacity_bytes += removed.missing_bytes + MIN
    again = driver.retain()
    assert (again.waits, again.segments > 0, again.carried) == (Waits.NO, True, 18)


def test_room_that_goes_while_it_works_makes_it_wait_and_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another program fills the disk between two slices."""
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 1)
    driver = with_old_halves(segments=1, halves=6, free_bytes_min=MIN)
    disk = faulty(driver)
    now_ms, removed = driver.clock.now_ms(), Removed(log_start=0)
    steps = retirements(driver.store, now_ms, removed)
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        if isinstance(step, Carrying):
            disk.capacity_bytes = used_bytes(disk)
    assert (removed.waits, removed.segments, removed.carried) == (Waits.FOR_ROOM, 0, 1)
    assert driver.store.failure is None
    disk.capacity_bytes = None
    again = driver.retain()
    assert (again.waits, again.segments > 0, again.carried) == (Waits.NO, True, 5)


def test_the_reserve_is_the_last_room_to_retire_a_segment() -> None:
    driver = with_old_halves(segments=4, halves=2, free_bytes_min=4 * MIN, checkpoint_bytes=4096)
    driver.store.checkpoint()
    disk = faulty(driver)
    reserve = driver.store.space.reserve
    reserve.make()
    assert reserve.is_whole
    # Another program has taken all the rest.
    disk.capacity_bytes = used_bytes(disk) + reserve.held
    assert disk.free_bytes() == 0
    assert driver.store.space.look() is Level.NOTHING
    removed = driver.retain()
    assert (removed.waits, removed.carried) == (Waits.NO, 8)
    assert removed.segments >= 4
    assert reserve.held == 0
    # What is free now is no longer the reserve's.
    assert disk.free_bytes() > 0
    disk.capacity_bytes = None
    driver.store.space.look()
    assert driver.store.space.wants_reserve


def test_a_reserve_that_would_not_suffice_is_kept() -> None:
    driver = with_old_halves(segments=2, halves=6, free_bytes_min=1024, segment_bytes_max=16_384)
    driver.store.space.reserve.make()
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + driver.store.space.reserve.held
    assert driver.retain().waits is Waits.FOR_ROOM
    assert driver.store.space.reserve.is_whole


def test_with_nothing_kept_free_nobody_looks_for_room() -> None:
    driver = with_old_halves(segments=1, halves=2, free_bytes_min=0)
    assert driver.retain().carried == 2
    assert driver.store.space.missing_bytes(2**62) == 0


# A full disk at a start


def test_a_start_on_a_full_disk_takes_the_reserve_and_retires_segments() -> None:
    """Today's release refused to start: there was no room to write the tail again."""
    driver = with_old_halves(segments=6, halves=2, free_bytes_min=4 * MIN, segment_bytes_max=16_384)
    driver.store.checkpoint()
    driver.store.space.reserve.make()
    disk = faulty(driver)
    driver.append(message("last"))
    disk.capacity_bytes = used_bytes(disk) + driver.store.space.reserve.held
    after = driver.opened_again()
    assert not after.store.space.reserve.held
    assert after.bodies() == ["last"]
    assert after.half(0).state is State.PREPARED
    # Room for what it lacked: the segments that it could not delete before.
    removed = after.retain()
    assert (removed.waits, removed.carried, removed.segments >= 6) == (Waits.NO, 12, True)
    assert after.store.space.look() < Level.NOTHING
    after.commit(0)
    assert len(after.bodies()) == 2


def test_a_start_on_a_full_disk_without_a_reserve_says_so() -> None:
    driver = Driver(free_bytes_min=MIN)
    driver.append(message("kept"))
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk)
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()


def test_a_reserve_that_is_too_small_for_a_start_is_given_up_and_the_start_says_so() -> None:
    driver = Driver(free_bytes_min=800)
    driver.append(message(bytes(3_000)))
    driver.store.space.reserve.make()
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + 100
    with pytest.raises(StoreUnusable, match="data_directory_full"):
        driver.opened_again()
    disk.capacity_bytes = None
    assert len(driver.opened_again().messages()) == 1


def test_a_reserve_that_does_not_fit_is_not_made(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(free_bytes_min=MIN)
    disk = faulty(driver)
    disk.capacity_bytes = used_bytes(disk) + 100
    driver.store.space.reserve.make()
    assert not driver.store.space.reserve.held
    assert not disk.exists("reserve")
    assert "reserve_not_made" in [record.message for record in caplog.records]


# Undecided bytes and ``store.retention_bytes``


def test_undecided_bytes_do_not_count_against_the_size_of_the_log() -> None:
    """Visible messages keep their room, and nothing is copied to no end."""
    driver = Driver(retention_bytes=8_000, retention_ms=1_000 * RETENTION)
    for number in range(40):
        driver.hold(f"t{number}", message("." * 1_000))
    driver.append(message("visible"))
    driver.roll_segment()
    assert driver.store.table.needed_bytes > 5 * driver.store.config.retention_bytes
    assert exceeding_bytes(driver.store) > 0
    end = driver.store.log.end
    for _ in range(3):
        assert driver.retain().carried == 0
    assert driver.store.log.end == end
    assert "visible" in driver.bodies()


def test_size_alone_copies_no_half_message_twice_while_undecided_ones_exceed_it() -> None:
    driver = Driver(retention_bytes=8_000, retention_ms=1_000 * RETENTION)
    for number in range(40):
        driver.hold(f"t{number}", message("." * 1_000))
    carried, removed = 0, Removed(log_start=0)
    for number in range(60):
        driver.append(message(f"{number}" + "." * 1_000))
        removed = driver.retain()
        carried += removed.carried
    assert carried == 40
    assert removed.waits is Waits.FOR_DECISIONS
    # The newest of the visible ones fill at least the room that they have.
    assert len(driver.bodies()) >= 7
    for row in range(40):
        driver.roll_back(row)
    assert driver.retain().waits is Waits.NO
    assert driver.store.log.written - driver.store.log.start < 8_000 + 3 * 4_096


def test_age_carries_again_what_size_alone_does_not() -> None:
    driver = Driver(retention_bytes=8_000)
    for number in range(20):
        driver.hold(f"t{number}", message("." * 1_000))
    while driver.retain().waits is Waits.NO:
        driver.append(message("." * 1_000, topic="filler"))
    driver.clock.advance(ms=RETENTION)
    driver.roll_segment()
    driver.clock.advance(ms=RETENTION)
    assert driver.retain().carried == 20


def test_a_few_parked_ones_do_not_keep_the_log_above_its_size() -> None:
    """They are carried again each time the log was written once: they are little of it."""
    driver = Driver(retention_bytes=16_000, retention_ms=1_000 * RETENTION)
    driver.hold("parked")
    for _ in range(100):
        driver.append(message("." * 1_000))
        driver.retain()
        assert driver.store.log.written - driver.store.log.start < 16_000 + 3 * 4_096
    driver.commit(0)
    assert driver.bodies()[-1] == "parked"


# Crashes


@pytest.mark.parametrize("survivors", [nothing_survives, everything_survives])
def test_a_crash_between_two_steps_leaves_a_store_that_goes_on(
    survivors: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carrying, "SLICE_WEIGHT_MAX", 1)
    count = len(steps_of(with_old_halves(segments=2, halves=2), Removed(log_start=0)))
    for stop in range(count):
        driver = with_old_halves(segments=2, halves=2)
        now_ms = driver.clock.now_ms()
        steps = retirements(driver.store, now_ms, Removed(log_start=0))
        decisions: list[Decision] | None = None
        for _ in range(stop):
            step = next_step(steps, decisions)
            assert step is not None
            decisions = do_step(driver.store, step, now_ms)
        after = driver.crashed(survivors)  # type: ignore[arg-type] # a table's column
        retain(after.store, now_ms)
        assert needed_rows(after.store.table) == [0, 1, 2, 3]
        for row in range(4):
            after.commit(row)
        assert len(after.bodies()) == 4


def test_work_aside_is_never_done_by_the_steps_themselves() -> None:
    """What waits for the disk is in steps: between them no file is touched but for reading."""
    driver = with_old_halves(segments=2, halves=2)
    disk = faulty(driver)
    now_ms = driver.clock.now_ms()
    steps = retirements(driver.store, now_ms, Removed(log_start=0))
    decisions: list[Decision] | None = None
    kinds = set()
    while True:
        before = len(disk.journal)
        step = next_step(steps, decisions)
        assert len(disk.journal) == before
        if step is None:
            break
        kinds.add(type(step))
        decisions = do_step(driver.store, step, now_ms)
    assert kinds == {Carrying, Checkpointing, Aside}
