"""Store time, computed from clock readings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.broker.write.store_time import DELETION_WAITS_MS, SLEW, ClockGap
from escrowmq.model.clock import GAP_MS
from escrowmq.transaction.records import (
    CLIENTS,
    KERNEL,
    PERSON,
)
from tests.unit.broker.store_times import DAY, HOUR, MINUTE, SECOND, T0, TEN_YEARS, World

# Store time advances with the boot clock.


def test_store_time_advances_with_the_boot_clock() -> None:
    world = World()
    world.boot_ms += HOUR
    assert world.now_ms == T0 + HOUR


def test_a_suspended_machine_leaves_no_gap() -> None:
    world = World()
    # The boot clock also counts the time of a suspend.
    world.passes(HOUR)
    assert world.looks() is None
    assert (world.now_ms, world.time.gap) == (T0 + HOUR, ClockGap.NONE)
    assert world.time.deletion_waits(world.boot_ms) == ""


@pytest.mark.parametrize("gap_ms", [30 * SECOND, -30 * SECOND, GAP_MS - 1, 1 - GAP_MS])
def test_less_than_a_minute_is_made_up_for_slowly(gap_ms: int) -> None:
    world = World()
    assert world.jumps(gap_ms) is None
    assert world.now_ms == T0
    for _ in range(9):
        before_ms = world.now_ms
        world.passes(10 * SECOND)
        assert world.looks() is None
        assert 9 * SECOND <= world.now_ms - before_ms <= 11 * SECOND
    world.passes(abs(gap_ms) * SLEW)
    assert world.now_ms == world.wall_ms
    assert world.time.gap is ClockGap.NONE


def test_a_few_milliseconds_are_left_as_they_are() -> None:
    world = World()
    world.jumps(9)
    world.passes(HOUR)
    assert world.now_ms == T0 + HOUR


@given(
    st.lists(
        st.tuples(
            st.integers(1, 2 * DAY),
            st.sampled_from([0, 0, 5, 40_000, -40_000, HOUR, -HOUR, TEN_YEARS, -TEN_YEARS]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_store_time_never_goes_back_and_never_stands_still(
    steps: list[tuple[int, int, bool]],
) -> None:
    world = World()
    seen = [(world.boot_ms, world.now_ms)]
    for passed_ms, jump_ms, world.synchronized in steps:
        world.passes(passed_ms)
        seen.append((world.boot_ms, world.now_ms))
        world.jumps(jump_ms)
        seen.append((world.boot_ms, world.now_ms))
    for (boot_ms, before_ms), (later_boot_ms, after_ms) in pairwise(seen):
        slowest_ms = (later_boot_ms - boot_ms) * (SLEW - 1) // SLEW
        # One millisecond may be lost when slewing stops.
        assert after_ms - before_ms >= max(slowest_ms - 1, 0)


# The wall clock is far ahead.


def test_a_gap_without_a_witness_is_not_followed_and_nothing_is_deleted() -> None:
    world = World()
    assert world.jumps(4 * DAY) is None
    assert (world.now_ms, world.time.gap, world.time.is_doubtful) == (T0, ClockGap.AHEAD, True)
    world.passes(HOUR)
    assert world.looks() is None
    assert world.now_ms == T0 + HOUR
    assert world.time.deletion_waits(world.boot_ms) == (
        "the wall clock is ahead, and no second source confirms it"
    )
    assert world.time.deletion_now_ms(DAY, world.boot_ms) == 0


def test_a_gap_that_the_kernel_confirms_is_followed_at_once_and_deletion_waits_an_hour() -> None:
    world = World(synchronized=True)
    move = world.jumps(4 * DAY)
    assert move is not None
    assert (move.from_ms, move.to_ms, move.why) == (T0, T0 + 4 * DAY, KERNEL)
    assert (world.now_ms, world.time.gap) == (T0 + 4 * DAY, ClockGap.NONE)
    world.passes(DELETION_WAITS_MS - 1)
    assert world.time.deletion_waits(world.boot_ms) == "store time moved less than an hour ago"
    assert world.time.deletion_now_ms(DAY, world.boot_ms) == 0
    world.passes(1)
    assert world.time.deletion_waits(world.boot_ms) == ""
    assert world.deletes_before(DAY) == world.now_ms - DAY


def test_store_time_does_not_move_before_that_is_on_record() -> None:
    world = World(synchronized=True)
    world.wall_ms += DAY
    move = world.time.look(world.reading)
    world.passes(3 * SECOND)
    assert world.now_ms == T0 + 3 * SECOND
    world.does(move)
    assert world.now_ms == world.wall_ms


def test_a_gap_is_followed_once_the_kernel_vouches_for_it() -> None:
    world = World()
    world.jumps(DAY)
    world.synchronized = True
    world.looks()
    assert world.now_ms == T0 + DAY


def test_a_gap_that_closes_leaves_nothing_behind() -> None:
    world = World()
    world.jumps(4 * DAY)
    world.passes(MINUTE)
    assert world.jumps(-4 * DAY) is None
    assert (world.now_ms, world.time.gap, world.records) == (T0 + MINUTE, ClockGap.NONE, [])
    assert world.time.deletion_waits(world.boot_ms) == ""


def test_two_client_hosts_are_witnesses_and_one_is_not_enough() -> None:
    world = World()
    world.jumps(DAY)
    for port_of_one_host in range(3):
        world.time.witness(b"host", world.wall_ms - port_of_one_host, world.wall_ms)
    assert world.looks() is None
    # A host that follows the old time is not a witness.
    world.time.witness(b"other", T0, world.wall_ms)
    world.time.witness(b"third", world.wall_ms + GAP_MS, world.wall_ms)
    assert world.looks() is None
    world.time.witness(b"other", world.wall_ms + MINUTE - 1, world.wall_ms)
    assert world.time.witnesses == 2
    move = world.looks()
    assert move is not None
    assert move.why == CLIENTS
    assert world.now_ms == T0 + DAY


def test_witnesses_of_one_gap_say_nothing_about_the_next() -> None:
    world = World()
    world.jumps(DAY)
    world.time.witness(b"host", world.wall_ms, world.wall_ms)
    world.jumps(DAY)
    world.time.witness(b"other", world.wall_ms, world.wall_ms)
    assert world.looks() is None
    assert world.time.witnesses == 1


def test_hosts_are_no_witnesses_unless_the_broker_asks() -> None:
    world = World()
    world.time.witness(b"host", T0, T0)
    assert not world.time.wants_witnesses
    assert world.time.witnesses == 0


def test_a_person_confirms_what_is_ahead() -> None:
    world = World()
    world.jumps(DAY)
    move = world.time.confirm(world.reading, "ann@ops")
    assert move is not None
    assert (move.why, move.by) == (PERSON, "ann@ops")
    world.does(move)
    assert world.now_ms == T0 + DAY
    assert world.time.deletion_waits_ms(world.boot_ms) == DELETION_WAITS_MS
    assert world.time.confirm(world.reading, "ann@ops") is None
