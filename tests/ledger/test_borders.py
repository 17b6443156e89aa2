"""A short hunt at the borders with a fixed seed; ``make borders`` uses fresh seeds."""

from __future__ import annotations

import pytest

from tests.ledger.borders.hands import DRIVERS
from tests.ledger.borders.hunt import Hunt, quiet

SEED = 5
PROGRAMS = 3 * len(DRIVERS)
#: The length of a hunt whose required counts these programs must reach.
SHARE_S = 5.0


def test_a_slice_of_the_hunt_finds_nothing(postgres_url: str) -> None:
    hunt = Hunt(SEED, lambda: postgres_url)
    with quiet():
        for number in range(PROGRAMS):
            hunt.run(number)
    assert hunt.shortfalls(SHARE_S) == []


def test_a_hunt_that_did_too_little_says_so() -> None:
    hunt = Hunt(SEED, lambda: pytest.fail("it runs nothing"))
    told = hunt.shortfalls(SHARE_S)
    assert "no restores" in told
    assert "asyncpg: 0 commits of 2" in told


def test_a_program_is_the_same_in_every_run() -> None:
    one, other = (Hunt(SEED, lambda: "") for _ in range(2))
    assert [one.program(k) for k in range(20)] == [other.program(k) for k in range(20)]
