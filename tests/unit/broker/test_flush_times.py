from __future__ import annotations

import pytest

from escrowmq.broker.flush_times import KEPT, FlushTimes


def test_with_no_flush_there_is_no_time() -> None:
    assert FlushTimes().quantile_ms(0.5) == 0.0


def test_the_slowest_are_told_from_the_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    times = FlushTimes()
    clock = iter(second / 1_000 for flush in range(100) for second in (0, flush))
    monkeypatch.setattr("escrowmq.broker.flush_times.time.perf_counter", lambda: next(clock))
    for _ in range(100):
        times.timed(lambda: None)
    assert (times.quantile_ms(0.5), times.quantile_ms(0.99)) == (50.0, 99.0)


def test_a_flush_that_fails_is_not_counted_and_old_ones_are_forgotten() -> None:
    times = FlushTimes()

    def fail() -> None:
        raise OSError

    with pytest.raises(OSError, match=r"^$"):
        times.timed(fail)
    assert times.quantile_ms(1.0) == 0.0
    for _ in range(KEPT + 1):
        times.timed(lambda: None)
    assert len(times._seconds) == KEPT
