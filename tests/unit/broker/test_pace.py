"""Pauses of the broker's own work while clients send messages."""

from __future__ import annotations

import pytest

from escrowmq.broker.write.pace import FREE_MIN, IN_USE_S, BackgroundPace


class Thread:
    """A thread's clocks: wall time, and the time that it worked."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.used_s = 7.0
        self.pace = BackgroundPace(lambda: self.now_s, lambda: self.used_s)

    def run(self, seconds: float, *, busy: float) -> None:
        """Let time pass, of which the thread is busy for a share."""
        self.now_s += seconds
        self.used_s += seconds * busy


def test_without_senders_work_does_not_rest() -> None:
    thread = Thread()
    assert not thread.pace.is_in_use
    assert thread.pace.rest_s(1.0) == 0
    thread.pace.note_sent()
    assert thread.pace.is_in_use
    assert thread.pace.rest_s(1.0) > 0
    thread.run(IN_USE_S + 0.001, busy=1.0)
    assert thread.pace.rest_s(1.0) == 0


@pytest.mark.parametrize(("busy", "rest_s"), [(0.0, 1.0), (0.5, 2.0), (0.8, 5.0)])
def test_work_rests_longer_on_a_busy_thread(busy: float, rest_s: float) -> None:
    thread = Thread()
    thread.run(1.0, busy=busy)
    thread.pace.note_sent()
    assert thread.pace.rest_s(1.0) == pytest.approx(rest_s)


def test_waiting_for_the_disk_counts_as_busy() -> None:
    thread = Thread()
    thread.run(1.0, busy=0.3)
    thread.pace.note_flush(0.5)
    thread.pace.note_sent()
    assert thread.pace.rest_s(1.0) == pytest.approx(5.0)


def test_on_a_full_thread_the_rest_stays_bounded() -> None:
    thread = Thread()
    thread.run(1.0, busy=1.0)
    thread.pace.note_sent()
    assert thread.pace.rest_s(1.0) == pytest.approx(1 / FREE_MIN)


def test_the_share_is_measured_again() -> None:
    thread = Thread()
    thread.run(1.0, busy=0.8)
    thread.pace.note_sent()
    assert thread.pace.rest_s(1.0) == pytest.approx(5.0)
    thread.run(0.001, busy=0.0)
    assert thread.pace.rest_s(1.0) == pytest.approx(5.0), "too short to measure"
    thread.run(0.05, busy=0.0)
    thread.pace.note_sent()
    assert thread.pace.rest_s(1.0) == pytest.approx(1.0, rel=0.01)
