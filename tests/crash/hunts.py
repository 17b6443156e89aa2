"""The hunts of ``make crash``, which take turns; ``long.py`` draws a seed for each and calls it.

A hunt raises at the first thing that is wrong, and returns how much it has examined.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import hypothesis
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import EMPTY
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import nothing_survives, random_subset
from tests.crash.databases import KINDS, databases, policy_with
from tests.crash.driver import BORN, CONFIG, POLICY, Driver
from tests.crash.explore import Case, Exploration
from tests.crash.kill_loop import kill_loop
from tests.crash.random_day import random_day
from tests.crash.state_stores import let_go
from tests.crash.test_state_machine import StoreMachine
from tests.crash.workload import scripted

DAY_STEPS = 90
STATE_KILLS = 6
DAY_POINTS = 60
RUNS = 400
RUN_STEPS = 60


#: Hunts cause thousands of torn tails; do not log each of them.
logging.getLogger("escrowmq").setLevel(logging.ERROR)


def whole(seed: int) -> Mapping[str, int]:
    """Cut the scripted day at every operation, in every interesting way and some random ones."""
    driver = Driver(FaultyDisk(BORN))
    scripted(driver)
    return explored(driver, seed, subsets=4)


def whole_os(seed: int) -> Mapping[str, int]:
    """The same with answers that do not wait for the flush."""
    driver = Driver(FaultyDisk(BORN), replace(CONFIG, durability="os"))
    scripted(driver)
    return explored(driver, seed, subsets=4)


def birth(seed: int) -> Mapping[str, int]:
    """Cut the creation of a store in an empty directory, and its first steps."""
    driver = Driver(FaultyDisk(EMPTY))
    random_day(driver, Random(seed), 5)
    return explored(driver, seed, subsets=4)


def day(seed: int) -> Mapping[str, int]:
    """Cut a random day at some of its operations."""
    rng = Random(seed)
    config = rng.choice((CONFIG, CONFIG, replace(CONFIG, durability="os")))
    driver = Driver(FaultyDisk(BORN), config)
    random_day(driver, rng, DAY_STEPS)
    points = range(len(driver.disk.journal) + 1)
    some = sorted(rng.sample(points, min(DAY_POINTS, len(points))))
    return explored(driver, seed, positions=some, most=6, subsets=3)


def machine(seed: int) -> Mapping[str, int]:
    """Let Hypothesis choose the commands and the failures."""

    class Seeded(StoreMachine):
        """A subclass of its own for each seed."""

    hypothesis.seed(seed)(Seeded)
    run_state_machine_as_test(
        Seeded,
        settings=hypothesis.settings(
            max_examples=RUNS,
            stateful_step_count=RUN_STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return {"runs of the machine": RUNS}


def explored(
    driver: Driver,
    seed: int,
    *,
    positions: list[int] | None = None,
    most: int | None = None,
    subsets: int,
) -> Mapping[str, int]:
    """Judge every case of a day; recover some twice, rebuild, continue or cut them again."""
    exploration = Exploration(driver, seed=seed)
    rng = Random(seed)
    for case in exploration.cases(positions, most=most, subsets=subsets):
        try:
            recovered = exploration.judge(
                case,
                twice=rng.random() < 0.2,
                go_on=rng.random() < 0.1,
                rebuild=rng.random() < 0.1,
            )
            if recovered is not None and rng.random() < 0.05:
                cut_again(exploration, case, recovered, rng)
        except Exception as error:
            error.add_note(f"{case!r}")
            raise
    tally = exploration.tally
    return {"crash points": tally.points, "disks": tally.images}


def cut_again(exploration: Exploration, case: Case, recovered: FaultyDisk, rng: Random) -> None:
    """Cut the power again, at every operation of the recovery."""
    for point in CrashExplorer(tuple(recovered.journal), recovered.start):
        for survivors in (nothing_survives, random_subset(rng)):
            exploration.judge(replace(case, image=point.crash_image(survivors)))


def states(seed: int) -> Mapping[str, int]:
    """Cut a random day with each state store, and kill a process that has it."""
    counts: Counter[str] = Counter()
    with databases() as make:
        for kind in KINDS:
            with tempfile.TemporaryDirectory(prefix="escrowmq-states-") as name:
                folder = Path(name)
                policy = policy_with(POLICY, make(kind, folder))
                driver = Driver(FaultyDisk(BORN), policy=policy)
                random_day(driver, Random(seed), DAY_STEPS)
                counts.update(explored(driver, seed, subsets=2))
                let_go(driver.store)
                policy = policy_with(POLICY, make(kind, folder))
                counts["kills"] += kill_loop(seed, STATE_KILLS, folder, policy=policy).kills
    return counts
