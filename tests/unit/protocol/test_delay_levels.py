"""Delay levels, and the retry delays that come from them."""

from __future__ import annotations

import pytest

from escrowmq.protocol.message.delay_levels import DELAY_LEVELS, DelayLevels

MINUTE_MS = 60_000
STOCK = DelayLevels.parse(DELAY_LEVELS)


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
    assert STOCK.delay_ms(level) == waits_ms


def test_there_are_eighteen_levels_each_longer_than_the_one_before() -> None:
    assert STOCK.count == 18
    assert list(STOCK.waits_ms) == sorted(set(STOCK.waits_ms))


def test_sixteen_retries_go_from_ten_seconds_to_two_hours() -> None:
    waits_ms = [STOCK.delay_ms(STOCK.retry_level(times)) for times in range(16)]
    assert waits_ms == list(STOCK.waits_ms[2:])
    assert STOCK.retry_level(16) == 18


def test_a_consumer_may_ask_for_a_level() -> None:
    assert STOCK.retry_level(5, asked_level=2) == 2
    assert STOCK.retry_level(5, asked_level=99) == 18


def test_an_owner_may_set_other_levels() -> None:
    levels = DelayLevels.parse(" 2s 1m\t3h 1d ")
    assert levels.waits_ms == (2_000, MINUTE_MS, 180 * MINUTE_MS, 24 * 60 * MINUTE_MS)
    assert [levels.retry_level(times) for times in range(3)] == [3, 4, 4]
    assert DelayLevels.parse("1s").delay_ms(DelayLevels.parse("1s").retry_level(0)) == 1_000


@pytest.mark.parametrize(
    "text", ["", " ", "10", "s", "1.5s", "-1s", "0s", "5 s", "1w", "366d", "9" * 10 + "s", "٣s"]
)
def test_a_malformed_delay_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 10s|1 to 64 delays"):
        DelayLevels.parse(text)


def test_there_is_a_limit_to_levels() -> None:
    with pytest.raises(ValueError, match="1 to 64 delays"):
        DelayLevels.parse("1s " * 65)
