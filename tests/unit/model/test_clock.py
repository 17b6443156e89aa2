"""The machine's clocks, and the time at which a store starts."""

from __future__ import annotations

import pytest

from escrowmq.model.clock import (
    GAP_MS,
    Anchor,
    ClockReading,
    SystemClock,
    kernel_clock,
    read,
    time_at_start,
)
from escrowmq.testing.clock import ManualClock

T0 = 1_700_000_000_000
DAY = 86_400_000


def test_the_machine_has_all_clocks() -> None:
    clock = SystemClock()
    first, second = read(clock), read(clock)
    assert first.wall_ms > T0
    assert 0 < first.boot_ms <= second.boot_ms
    assert first.boot_id == second.boot_id
    assert clock.monotonic_ms() <= clock.monotonic_ms()
    assert isinstance(clock.is_synchronized(), bool)


def test_without_a_kernel_that_tells_it_the_clock_is_not_synchronized() -> None:
    assert kernel_clock("plan9")() is False


class Sleepy(ManualClock):
    """A machine that is suspended once between two readings."""

    is_tired = True

    def now_ms(self) -> int:
        now_ms = super().now_ms()
        if self.is_tired:
            self.is_tired = False
            self.suspend(seconds=3_600)
        return now_ms


def test_a_machine_that_sleeps_between_two_readings_leaves_no_gap() -> None:
    reading = read(Sleepy(T0, boot_ms=0))
    assert reading.wall_ms - reading.boot_ms == T0


@pytest.mark.parametrize(
    ("last_at_ms", "anchor", "reading", "at_ms"),
    [
        # A new store starts at the wall clock's time.
        (0, None, ClockReading(T0, 7, "a"), T0),
        # A start is later than everything before it, even if the clock has not advanced.
        (T0, None, ClockReading(T0, 7, "a"), T0 + 1),
        (T0, None, ClockReading(T0 - DAY, 7, "a"), T0 + 1),
        # The store was closed for less than a minute.
        (T0, None, ClockReading(T0 + GAP_MS, 7, "a"), T0 + GAP_MS),
        # The store was closed for longer, and there is no anchor to measure it.
        (T0, None, ClockReading(T0 + GAP_MS + 1, 7, "a"), T0 + 1),
        # The boot clock measures it, whatever the wall clock says.
        (T0, Anchor(T0 - 5, 1_000, "a"), ClockReading(T0 + 9 * DAY, 1_005 + DAY, "a"), T0 + DAY),
        (T0, Anchor(T0 - 5, 1_000, "a"), ClockReading(T0 - DAY, 1_005 + DAY, "a"), T0 + DAY),
        (
            T0,
            Anchor(T0 - 5, 1_000, "a"),
            ClockReading(T0 + DAY + 3, 1_005 + DAY, "a"),
            T0 + DAY + 3,
        ),
        # A different boot, or an unknown one.
        (T0, Anchor(T0 - 5, 1_000, "a"), ClockReading(T0 + 9 * DAY, 1_005 + DAY, "b"), T0 + 1),
        (T0, Anchor(T0 - 5, 1_000, ""), ClockReading(T0 + 9 * DAY, 1_005 + DAY, ""), T0 + 1),
        # The same boot but less time: a copy of a machine.
        (T0, Anchor(T0 - 5, 1_000, "a"), ClockReading(T0 + 9 * DAY, 999, "a"), T0 + 1),
    ],
)
def test_with_which_time_a_store_begins(
    last_at_ms: int, anchor: Anchor | None, reading: ClockReading, at_ms: int
) -> None:
    assert time_at_start(last_at_ms, anchor, reading) == at_ms
