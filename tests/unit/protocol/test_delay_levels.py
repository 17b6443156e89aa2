"""Delay levels and the retries that are made of them."""

from __future__ import annotations

import pytest

from escrowmq.protocol.delay_levels import DELAY_LEVELS_MS, delay_ms, retry_level

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("level", "waits_ms"),
    [
        (-1, 0),
        (0, 0),
        (1, 1_000),
        (2, 5_000),
        (3, 10_000),
        (4, 30_000),
        (5, MINUTE_MS),
        (14, 10 * MINUTE_MS),
        (15, 20 * MINUTE_MS),
        (16, 30 * MINUTE_MS),
        (17, 60 * MINUTE_MS),
        (18, 120 * MINUTE_MS),
        (19, 120 * MINUTE_MS),
        (2**31 - 1, 120 * MINUTE_MS),
    ],
)
def test_a_level_waits_as_long_as_rocketmq_says(level: int, waits_ms: int) -> None:
    assert delay_ms(level) == waits_ms


def test_there_are_eighteen_levels_each_longer_than_the_one_before() -> None:
    assert len(DELAY_LEVELS_MS) == 18
    assert list(DELAY_LEVELS_MS) == sorted(set(DELAY_LEVELS_MS))


def test_sixteen_retries_go_from_ten_seconds_to_two_hours() -> None:
    waits_ms = [delay_ms(retry_level(times)) for times in range(16)]
    assert waits_ms == list(DELAY_LEVELS_MS[2:])
    assert retry_level(16) == 18


def test_a_consumer_may_ask_for_a_level() -> None:
    assert retry_level(5, asked_level=2) == 2
    assert retry_level(5, asked_level=99) == 18
