"""The clock that a test advances by hand."""

from __future__ import annotations

import pytest

from escrowmq.model.clock import Clock
from escrowmq.testing.clock import ManualClock


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert clock.now_ms() == clock.now_ms() == 1_700_000_000_000


def test_time_passes_by_as_much_as_it_is_told() -> None:
    clock = ManualClock(now_ms=1_000)
    clock.advance(ms=5)
    clock.advance(seconds=2)
    clock.advance(ms=1, seconds=1)
    assert clock.now_ms() == 4_006


def test_a_part_of_a_second_is_whole_milliseconds() -> None:
    clock = ManualClock(1_000)
    clock.advance(seconds=0.5)
    clock.jump(seconds=0.25)
    clock.suspend(seconds=0.1)
    clock.power_off(seconds=0.1)
    assert clock.now_ms() == 1_950
    assert isinstance(clock.now_ms(), int)


def test_time_does_not_go_back() -> None:
    clock = ManualClock(1_000)
    with pytest.raises(ValueError, match="jump"):
        clock.advance(seconds=-1)
    assert clock.now_ms() == 1_000


def test_it_can_be_set_back() -> None:
    clock: Clock = (manual := ManualClock())
    manual.set(42)
    assert clock.now_ms() == 42
