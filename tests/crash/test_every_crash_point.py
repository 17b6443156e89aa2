"""The power fails at every operation, with every choice of what the disk kept: nothing is lost.

These tests run slices with fixed seeds; ``make crash`` runs everything with fresh seeds.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import EMPTY
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import nothing_survives, random_subset
from tests.crash.driver import BORN, CONFIG, Driver
from tests.crash.explore import Exploration
from tests.crash.random_day import random_day
from tests.crash.workload import scripted

SEED = 20_261_115


def explored(durability: str = "fsync", seed: int = SEED) -> Exploration:
    """Run the scripted day, to be cut anywhere."""
    driver = Driver(FaultyDisk(BORN), replace(CONFIG, durability=durability))  # type: ignore[arg-type]
    scripted(driver)
    return Exploration(driver, seed=seed)


def positions(exploration: Exploration, step: int, start: int) -> range:
    """Every `step`-th operation of the day."""
    return range(start, len(exploration.driver.disk.journal) + 1, step)


@pytest.mark.parametrize("start", range(3))
def test_a_power_cut_loses_nothing_that_was_answered(start: int) -> None:
    exploration = explored()
    for case in exploration.cases(positions(exploration, 6, start), most=4, subsets=2):
        exploration.judge(case)
    assert exploration.tally.points > 100


def test_every_way_to_tear_some_writes_is_survived() -> None:
    exploration = explored()
    for case in exploration.cases(positions(exploration, 61, 7), subsets=4):
        exploration.judge(case)
    assert exploration.tally.images > 60


def test_answers_that_did_not_wait_for_the_disk_survive_a_kill() -> None:
    exploration = explored("os")
    for case in exploration.cases(positions(exploration, 11, 4), most=4, subsets=1):
        exploration.judge(case)
    assert exploration.tally.points > 50


def test_recovering_twice_gives_the_same() -> None:
    exploration = explored()
    for case in exploration.cases(positions(exploration, 23, 5), most=2):
        exploration.judge(case, twice=True)


def test_projections_that_are_lost_are_made_anew() -> None:
    exploration = explored()
    for case in exploration.cases(positions(exploration, 41, 11), most=1):
        exploration.judge(case, rebuild=True)


def test_a_recovered_store_goes_on() -> None:
    exploration = explored()
    for case in exploration.cases(positions(exploration, 53, 3), most=1):
        exploration.judge(case, go_on=True)


def test_the_power_fails_again_during_recovery() -> None:
    exploration = explored()
    rng = Random(SEED)
    again = 0
    for case in exploration.cases(positions(exploration, 97, 17), most=2, subsets=1):
        recovered = exploration.judge(case)
        if recovered is None:
            continue
        journal = recovered.journal
        explorer = CrashExplorer(journal, recovered.start)
        for position in sorted(rng.sample(range(len(journal) + 1), min(4, len(journal) + 1))):
            explorer.advance_to(position)
            for survivors in (nothing_survives, random_subset(rng)):
                image = explorer.crash_image(survivors)
                exploration.judge(replace(case, image=image))
                again += 1
    assert again > 20


@pytest.mark.parametrize("seed", range(3))
def test_a_random_day_survives_power_cuts(seed: int) -> None:
    driver = Driver(FaultyDisk(BORN))
    random_day(driver, Random(SEED + seed), 60)
    exploration = Exploration(driver, seed=SEED + seed)
    for case in exploration.cases(positions(exploration, 13, seed), most=2, subsets=1):
        exploration.judge(case)


def test_a_store_that_is_being_made_survives_power_cuts() -> None:
    driver = Driver(FaultyDisk(EMPTY))
    driver.append(driver.message())
    driver.sync()
    driver.checkpoint()
    exploration = Exploration(driver, seed=SEED)
    for case in exploration.cases(subsets=2):
        exploration.judge(case, go_on=True)
    assert exploration.tally.points == len(driver.disk.journal) + 1
