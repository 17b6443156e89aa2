"""Segments retire one after the other, in short steps, and only if there is room for what stays."""

from __future__ import annotations

import pytest

from escrowmq.store.queue import consume_queue, queue_files
from escrowmq.store.retention import carry_slices, needed, retirement
from escrowmq.store.retention.needed import needed_rows
from escrowmq.store.retention.retention import do_step, next_step, retain, retirements
from escrowmq.store.retention.retirement import Aside, Carrying, Checkpointing, Removed, Step, Waits
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import everything_survives, nothing_survives
from escrowmq.transaction.commands import Carry, Decision
from escrowmq.transaction.records import Carried
from tests.unit.store.helpers import HOUR, MINUTE, Driver, faulty, message

RETENTION = 24 * HOUR
MIN = 64 * 1024


def with_old_halves(segments: int, halves: int, **config: int) -> Driver:
    """Old segments, each with this many undecided half messages, and a young segment."""
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
    """Run all steps one by one; return them."""
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
    """The needed half messages of all segments together would not fit."""
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
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
    driver = with_old_halves(segments=1, halves=6)
    now_ms = driver.clock.now_ms()
    steps = retirements(driver.store, now_ms, Removed(log_start=0))
    decisions: list[Decision] | None = None
    slices = 0
    while (step := next_step(steps, decisions)) is not None:
        decisions = do_step(driver.store, step, now_ms)
        if isinstance(step, Carrying):
            slices += 1
            # One that is already carried, and one that is not yet.
            driver.commit({1: 0, 2: 5}.get(slices, 1))
    assert slices == 5
    assert driver.store.log.start > 0
    seen = sorted(body.rstrip(".") for body in driver.bodies())
    assert seen == ["0-0", "0-1", "0-5"]
    assert needed_rows(driver.store.table) == [2, 3, 4]


def test_slices_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_slices, "SLICE_BYTES_MAX", 2_000)
    driver = with_old_halves(segments=1, halves=5, segment_bytes_max=65_536)
    sizes = [
        len(step.commands)
        for step in steps_of(driver, Removed(log_start=0))
        if isinstance(step, Carrying)
    ]
    assert sizes == [2, 2, 1]
    monkeypatch.setattr(carry_slices, "SLICE_BYTES_MAX", 10**9)
    weight = carry_slices.REQUEST_WEIGHT + 1
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 3 * weight)
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
    """After a rebuild from a log without their first frames, rows are in the map of survivors."""
    for module in (needed, retirement):
        monkeypatch.setattr(module, "SURVIVORS_SLICE", 2)
    monkeypatch.setattr(needed, "CHUNKS_SLICE", 1)
    monkeypatch.setattr(retirement, "COMPUTED_HERE_MAX", 2)
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


def test_files_of_queues_go_with_the_log_that_they_are_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (consume_queue, queue_files):
        monkeypatch.setattr(module, "FILE_ENTRIES", 4)
    driver = Driver(retention_bytes=8_000)
    for number in range(30):
        driver.append(message(f"{number}" + "." * 500))
    driver.store.checkpoint()
    before = driver.disk.list("consumequeue")
    seen = driver.bodies()
    assert driver.retain().segments > 0
    left = driver.disk.list("consumequeue")
    assert len(left) < len(before)
    assert driver.bodies() == seen[-len(driver.bodies()) :]
    after = driver.closed_and_opened()
    assert after.bodies() == seen[-len(after.bodies()) :]
    assert driver.disk.list("consumequeue") == left


def test_needed_bytes_are_those_that_can_still_become_visible() -> None:
    driver = Driver()
    sizes = []
    for number in range(20):
        driver.hold(f"t{number}", message("." * number))
        sizes.append(driver.half(number).size)
    assert driver.store.table.needed_bytes == sum(sizes)
    driver.commit(3)
    driver.roll_back(9)
    left = sum(sizes) - sizes[3] - sizes[9]
    assert driver.store.table.needed_bytes == left
    # A chunk that is about to leave memory is counted once.
    for number in range(8):
        if number not in (3, 5):
            driver.roll_back(number)
    left = sizes[5] + sum(sizes[8:]) - sizes[9]
    driver.clock.advance(ms=HOUR)
    driver.append(message("later"))
    job = driver.store.begin_checkpoint()
    assert 5 in driver.store.table.survivors.rows
    assert driver.store.table.needed_bytes == left
    job.write()
    driver.store.end_checkpoint(job)
    assert driver.store.table.needed_bytes == left


def test_nothing_is_deleted_while_that_is_not_allowed() -> None:
    driver = with_old_halves(segments=2, halves=1)
    removed = Removed(log_start=0)
    steps = retirements(driver.store, driver.clock.now_ms(), removed, lambda: False)
    assert next_step(steps, None) is None
    assert (removed.waits, driver.store.log.start) == (Waits.FOR_PERMISSION, 0)


# Requests in parts


def large_request(monkeypatch: pytest.MonkeyPatch, **config: int) -> Driver:
    """An old request of ten messages, which is carried in parts of four."""
    monkeypatch.setattr(carry_slices, "PART_ROWS_MAX", 4)
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
    monkeypatch.setattr(carry_slices, "SLICE_BYTES_MAX", 1_000)
    driver = large_request(monkeypatch)
    carries = carries_of(steps_of(driver, Removed(log_start=0)))
    assert [one.part for one in carries] == [(8, 10), (6, 8), (4, 6), (2, 4), (0, 2)]


def test_a_request_that_is_carried_in_part_is_copied_whole_by_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries must not point into the segment that is about to be deleted."""
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
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
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
    driver = large_request(monkeypatch, copy_after_ms=HOUR)
    began_at_ms = driver.store.last_at_ms
    steps = retirements(driver.store, driver.clock.now_ms(), Removed(log_start=0))
    decisions: list[Decision] | None = None
    while (step := next_step(steps, decisions)) is not None:
        driver.clock.advance(ms=10 * MINUTE)
        decisions = do_step(driver.store, step, driver.clock.now_ms())
    assert driver.store.core.carried_at_ms == {0: began_at_ms}


def test_parts_that_were_left_behind_are_carried_without_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention waited for room between two parts, and the first of them has become old."""
    driver = large_request(monkeypatch)
    driver.do(Carry(first=0, part=(6, 10), since_ms=driver.clock.now_ms()))
    removed = Removed(log_start=0)
    carries = carries_of(steps_of(driver, removed))
    assert [(one.part, one.since_ms) for one in carries] == [
        ((2, 6), carry_slices.LONG_AGO_MS),
        ((0, 2), carry_slices.LONG_AGO_MS),
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
    assert isinstance(moved, Carried)
    assert (len(moved.rows), moved.since_ms) == (2, since_ms)


# Crashes


@pytest.mark.parametrize("survivors", [nothing_survives, everything_survives])
def test_a_crash_between_two_steps_leaves_a_store_that_goes_on(
    survivors: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry_slices, "SLICE_WEIGHT_MAX", 1)
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
        after = driver.crashed(survivors)  # type: ignore[arg-type] # a column of the table
        retain(after.store, now_ms)
        assert needed_rows(after.store.table) == [0, 1, 2, 3]
        for row in range(4):
            after.commit(row)
        assert len(after.bodies()) == 4


def test_work_aside_is_never_done_by_the_steps_themselves() -> None:
    """All disk writes are in steps; between steps, files are only read."""
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
