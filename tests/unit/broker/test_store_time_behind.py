"""Store time while the wall clock is behind it, and across starts."""

from __future__ import annotations

from escrowmq.broker.write.store_time import DELETION_WAITS_MS, ClockGap
from escrowmq.transaction.records import (
    AGREES,
    BEHIND,
    BOOT_CLOCK,
)
from tests.unit.broker.store_times import DAY, HOUR, MINUTE, T0, TEN_YEARS, World

# The wall clock is behind.


def test_store_time_goes_on_when_the_wall_clock_is_set_back() -> None:
    world = World(synchronized=True)
    world.jumps(-2 * HOUR)
    assert (world.now_ms, world.time.gap) == (T0, ClockGap.BEHIND)
    world.passes(MINUTE)
    assert world.looks() is None
    assert world.now_ms == T0 + MINUTE


def test_nothing_is_deleted_before_it_is_on_record_that_the_wall_clock_went_back() -> None:
    world = World()
    world.passes(DAY)
    world.wall_ms -= DAY
    move = world.time.look(world.reading)
    assert world.time.deletion_waits(world.boot_ms) == (
        "the wall clock went back, and the log does not record it yet"
    )
    world.does(move)
    assert world.time.deletion_waits(world.boot_ms) == ""


def test_messages_from_before_a_clock_went_back_live_longer_by_the_gap() -> None:
    world = World(synchronized=True)
    # A message is stored at T0. The kernel confirms a time that is two hours ahead.
    world.jumps(2 * HOUR)
    world.passes(2 * HOUR)
    world.jumps(-2 * HOUR)
    assert world.time.gap is ClockGap.BEHIND
    # The true age is two hours; by store time it is four.
    assert world.deletes_before(2 * HOUR) >= T0
    assert world.deletes_before(3 * HOUR) < T0


def test_nothing_is_kept_for_more_than_its_time_once_more() -> None:
    world = World(synchronized=True)
    world.jumps(TEN_YEARS)
    world.passes(2 * HOUR)
    stored_at_ms = world.now_ms
    world.jumps(-TEN_YEARS)
    world.passes(3 * DAY - 1)
    assert world.deletes_before(3 * DAY) < stored_at_ms
    world.passes(1)
    assert world.deletes_before(3 * DAY) >= stored_at_ms
    # New messages still age.
    stored_at_ms = world.now_ms
    world.passes(3 * DAY)
    assert world.deletes_before(3 * DAY) >= stored_at_ms


def test_a_restart_does_not_count_the_time_behind_again() -> None:
    world = World(synchronized=True)
    world.jumps(TEN_YEARS)
    world.passes(2 * HOUR)
    stored_at_ms = world.now_ms
    world.jumps(-TEN_YEARS)
    for _ in range(3):
        world.passes(DAY)
        world.starts_again()
        assert world.looks() is None
    assert world.time.gap is ClockGap.BEHIND
    assert world.deletes_before(3 * DAY) >= stored_at_ms


def test_a_machine_that_is_off_every_day_still_deletes_what_is_old() -> None:
    world = World(synchronized=True)
    world.jumps(TEN_YEARS)
    world.passes(2 * HOUR)
    stored_at_ms = world.now_ms
    world.jumps(-TEN_YEARS)
    for _ in range(3):
        world.passes(DAY)
        # The machine is off for an hour, which only the wall clock shows.
        world.wall_ms += HOUR
        world.starts_again()
        assert world.looks() is not None
    assert world.time.gap is ClockGap.BEHIND
    assert world.deletes_before(3 * DAY) >= stored_at_ms


def test_further_back_is_a_new_doubt() -> None:
    world = World(synchronized=True)
    world.jumps(-HOUR)
    world.passes(3 * DAY)
    stored_at_ms = world.now_ms
    assert world.deletes_before(3 * DAY) == stored_at_ms - 3 * DAY
    world.jumps(-DAY)
    assert world.deletes_before(3 * DAY) == stored_at_ms - 3 * DAY - DAY - HOUR


def test_a_person_who_knows_that_it_is_behind_is_not_alerted_any_more() -> None:
    world = World()
    world.jumps(-DAY)
    assert world.time.is_doubtful
    move = world.time.confirm(world.reading, "ann@ops")
    assert move is not None
    assert move.why == BEHIND
    world.does(move)
    assert (world.time.gap, world.time.is_doubtful) == (ClockGap.BEHIND, False)
    world.starts_again()
    world.looks()
    assert not world.time.is_doubtful
    # A smaller gap raises no alert either; a larger one does.
    world.jumps(HOUR)
    assert (world.time.gap, world.time.is_doubtful) == (ClockGap.BEHIND, False)
    world.jumps(-DAY)
    assert world.time.is_doubtful


def test_after_the_wall_clock_has_come_back_deletion_waits_an_hour() -> None:
    world = World()
    world.jumps(-2 * HOUR)
    move = world.jumps(2 * HOUR)
    assert move is not None
    assert move.why == AGREES
    assert world.time.gap is ClockGap.NONE
    assert world.time.deletion_waits_ms(world.boot_ms) == DELETION_WAITS_MS


def test_that_holds_also_if_it_was_ahead_in_between() -> None:
    world = World()
    world.jumps(-2 * HOUR)
    world.jumps(4 * HOUR)
    assert world.time.gap is ClockGap.AHEAD
    move = world.jumps(-2 * HOUR)
    assert move is not None
    assert move.why == AGREES


# Starts.


def test_a_restart_within_the_hour_counts_it_again() -> None:
    world = World(synchronized=True)
    world.jumps(DAY)
    world.passes(HOUR - 1)
    world.starts_again()
    assert world.time.deletion_waits_ms(world.boot_ms) == DELETION_WAITS_MS
    world.passes(HOUR)
    world.starts_again()
    assert world.time.deletion_waits(world.boot_ms) == ""


def test_time_that_the_boot_clock_has_counted_is_on_record_too() -> None:
    world = World()
    world.passes(4 * DAY)
    world.starts_again(last_at_ms=T0)
    move = world.looks()
    assert move is not None
    assert (move.from_ms, move.to_ms, move.why) == (T0, T0 + 4 * DAY, BOOT_CLOCK)
    assert world.now_ms == T0 + 4 * DAY
    assert world.time.deletion_waits_ms(world.boot_ms) == DELETION_WAITS_MS
    assert world.looks() is None
