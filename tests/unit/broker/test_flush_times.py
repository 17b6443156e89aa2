from __future__ import annotations

from escrowmq.broker.write.flush_times import KEPT, QUICK_S, TAKEN_INTO_ACCOUNT, FlushTimes


def test_with_no_flush_there_is_no_time() -> None:
    assert FlushTimes().quantile_ms(0.5) == 0.0


def test_the_slowest_are_told_from_the_usual() -> None:
    times = FlushTimes()
    for took_ms in range(100):
        times.add(took_ms / 1_000)
    assert (times.quantile_ms(0.5), times.quantile_ms(0.99)) == (50.0, 99.0)


def test_old_ones_are_counted_and_otherwise_forgotten() -> None:
    times = FlushTimes()
    times.add(5.0)
    for _ in range(KEPT):
        times.add(0.001)
    assert times.quantile_ms(1.0) == 1.0
    assert sum(times.counts) == KEPT + 1


def test_a_disk_is_quick_once_it_was_for_a_while() -> None:
    times = FlushTimes()
    assert not times.are_quick
    for _ in range(TAKEN_INTO_ACCOUNT):
        times.add(QUICK_S / 2)
    assert not times.are_quick
    for _ in range(2 * TAKEN_INTO_ACCOUNT):
        times.add(QUICK_S / 2)
    assert times.are_quick


def test_a_disk_is_slow_after_some_stalls_but_not_after_one() -> None:
    times = FlushTimes()
    for _ in range(1_000):
        times.add(QUICK_S / 4)
    times.add(5.0)
    assert times.are_quick
    for _ in range(5):
        times.add(5.0)
    assert not times.are_quick
