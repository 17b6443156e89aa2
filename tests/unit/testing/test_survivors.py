"""Strategies for what survives a power cut."""

from __future__ import annotations

from random import Random

import pytest

from escrowmq.testing.journal import Create, Extend, PendingOperation, Write
from escrowmq.testing.survivors import (
    AllBut,
    First,
    Only,
    RandomSubset,
    Survivors,
    Torn,
    TornLast,
    everything_survives,
    interesting_survivors,
    nothing_survives,
    random_subset,
    sectors,
    tear_points,
)


def write(offset: int, size: int) -> Write:
    """A write to file 0."""
    return Write(0, "f", offset, bytes(range(256)) * (size // 256) + bytes(range(size % 256)))


CREATE = Create(0, "f")
PENDING: tuple[PendingOperation, ...] = (CREATE, write(0, 4), write(4, 6))


@pytest.mark.parametrize(
    ("survivors", "expected"),
    [
        (nothing_survives, ()),
        (everything_survives, PENDING),
        (Only(1), (PENDING[1],)),
        (AllBut(1), (PENDING[0], PENDING[2])),
        (First(2), PENDING[:2]),
        (Torn(1, ((1, 3),)), (CREATE, Write(0, "f", 1, b"\x01\x02"), PENDING[2])),
        (TornLast(2), (*PENDING[:2], Write(0, "f", 4, b"\x00\x01"))),
        # None of the data survives, but its size does.
        (TornLast(0, sized=True), (*PENDING[:2], Extend(0, "f", 10))),
    ],
)
def test_a_strategy_keeps_what_its_name_says(
    survivors: Survivors, expected: tuple[PendingOperation, ...]
) -> None:
    assert tuple(survivors(PENDING)) == expected


def test_without_a_write_nothing_is_torn() -> None:
    assert tuple(TornLast(1)((CREATE,))) == (CREATE,)


def test_sectors_are_those_of_the_file() -> None:
    assert sectors(write(0, 100)) == [(0, 100)]
    assert sectors(write(0, 512)) == [(0, 512)]
    assert sectors(write(500, 1_100)) == [(0, 12), (12, 524), (524, 1_036), (1_036, 1_100)]


def test_tear_points_are_inside_the_write() -> None:
    assert tear_points(write(0, 1)) == [0]
    assert tear_points(write(0, 10)) == [0, 1, 4, 5, 9]
    assert tear_points(write(0, 100), boundaries=[32, 100, 0]) == [0, 1, 4, 31, 32, 33, 50, 99]
    assert {12, 524} < set(tear_points(write(500, 2_000)))


def test_a_random_choice_can_be_repeated_from_what_it_prints() -> None:
    pending = [write(index * 2_000, 2_000) for index in range(20)]
    survivors = random_subset(Random(7))
    assert survivors == random_subset(Random(7))
    assert eval(repr(survivors)) == survivors
    assert list(survivors(pending)) == list(survivors(pending))
    assert list(survivors(pending)) != list(random_subset(Random(8))(pending))


def test_random_choices_lose_keep_and_tear() -> None:
    pending: list[PendingOperation] = [CREATE, *(write(index * 2_000, 2_000) for index in range(9))]
    seen: set[str] = set()
    for seed in range(100):
        kept = list(RandomSubset(seed)(pending))
        seen.add("all" if kept == pending else "some" if kept else "none")
        for item in kept:
            if isinstance(item, Extend):
                seen.add("sized")
            elif item not in pending:
                assert isinstance(item, Write)
                whole = pending[1 + item.offset // 2_000]
                assert isinstance(whole, Write)
                start = item.offset - whole.offset
                assert item == whole.part(start, start + len(item.data))
                seen.add("torn")
    assert seen == {"all", "some", "none", "torn", "sized"}


def test_with_nothing_pending_there_is_one_interesting_choice() -> None:
    assert list(interesting_survivors(())) == [nothing_survives]


def test_interesting_choices_are_the_ends_one_against_all_and_tears() -> None:
    choices = list(interesting_survivors(PENDING, lambda _: [3]))
    assert choices[:2] == [nothing_survives, everything_survives]
    assert choices[2:8] == [Only(0), Only(1), Only(2), AllBut(0), AllBut(1), AllBut(2)]
    points = tear_points(write(4, 6), [3])
    assert choices[8:] == [TornLast(at, sized) for at in points for sized in (False, True)]


def test_the_parts_of_a_long_write_are_lost_in_turn() -> None:
    long = write(0, 1_200)
    choices = [item for item in interesting_survivors((long,)) if isinstance(item, Torn)]
    assert [choice.kept for choice in choices] == [
        ((512, 1_024), (1_024, 1_200)),
        ((0, 512), (1_024, 1_200)),
        ((0, 512), (512, 1_024)),
    ]


def test_only_the_newest_operations_are_singled_out() -> None:
    pending = [Create(index, f"f{index}") for index in range(100)]
    choices = list(interesting_survivors(pending, singled_out_max=2))
    assert choices[2:] == [Only(98), Only(99), AllBut(98), AllBut(99)]
