"""Hunts for crash bugs with fresh seeds, for as long as it is given: ``make crash``.

    python -m tests.crash.long [--seconds N] [--part NAME] [--seed S]

Every round prints its part and seed before it begins; after a failure, the command that repeats it
is printed and the exit code is 1.  With a seed, exactly that round is run; without one, rounds
follow each other until the time is over, the first being the whole of the scripted day.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from random import Random

import hypothesis
from hypothesis import HealthCheck
from hypothesis.stateful import run_state_machine_as_test

from escrowmq.testing.crash_explorer import CrashExplorer
from escrowmq.testing.disk_image import EMPTY
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import nothing_survives, random_subset
from tests.crash.driver import BORN, CONFIG, Driver
from tests.crash.explore import Case, Exploration
from tests.crash.kill_loop import kill_loop
from tests.crash.random_day import random_day
from tests.crash.test_state_machine import StoreMachine
from tests.crash.workload import scripted

SECONDS = 1_800
DAY_STEPS = 90
DAY_POINTS = 60
KILLS = 40


def whole(seed: int) -> str:
    """The scripted day, cut at every operation, in every interesting way and some drawn ones."""
    driver = Driver(FaultyDisk(BORN))
    scripted(driver)
    return explored(driver, seed, subsets=4)


def whole_os(seed: int) -> str:
    """The same, where answers do not wait for the disk."""
    driver = Driver(FaultyDisk(BORN), replace(CONFIG, durability="os"))
    scripted(driver)
    return explored(driver, seed, subsets=4)


def birth(seed: int) -> str:
    """The making of a store in an empty directory, and its first hours."""
    driver = Driver(FaultyDisk(EMPTY))
    random_day(driver, Random(seed), 5)
    return explored(driver, seed, subsets=4)


def day(seed: int) -> str:
    """A day drawn from the seed, cut at some operations."""
    rng = Random(seed)
    durability = rng.choice(("fsync", "fsync", "os"))
    driver = Driver(FaultyDisk(BORN), replace(CONFIG, durability=durability))
    random_day(driver, rng, DAY_STEPS)
    points = range(len(driver.disk.journal) + 1)
    some = sorted(rng.sample(points, min(DAY_POINTS, len(points))))
    return explored(driver, seed, positions=some, most=6, subsets=3)


def machine(seed: int) -> str:
    """Whatever Hypothesis thinks of."""

    class Seeded(StoreMachine):
        """One per seed."""

    hypothesis.seed(seed)(Seeded)
    run_state_machine_as_test(
        Seeded,
        settings=hypothesis.settings(
            max_examples=400,
            stateful_step_count=60,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return "400 runs of up to 60 steps"


def kill(seed: int) -> str:
    """A real process on real files, killed in a loop."""
    with tempfile.TemporaryDirectory() as directory:
        return str(kill_loop(seed, KILLS, Path(directory)))


def explored(
    driver: Driver,
    seed: int,
    *,
    positions: list[int] | None = None,
    most: int | None = None,
    subsets: int,
) -> str:
    """Judge every case of a day; some also twice, rebuilt, going on and cut again."""
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
        except BaseException:
            say(f"{case!r}")
            raise
    return repr(exploration.tally)


def cut_again(exploration: Exploration, case: Case, recovered: FaultyDisk, rng: Random) -> None:
    """The power fails again, at every operation of the recovery."""
    for point in CrashExplorer(tuple(recovered.journal), recovered.start):
        for survivors in (nothing_survives, random_subset(rng)):
            exploration.judge(replace(case, image=point.crash_image(survivors)))


PARTS: dict[str, Callable[[int], str]] = {
    "whole": whole,
    "whole_os": whole_os,
    "birth": birth,
    "kill": kill,
    "machine": machine,
    "day": day,
}
#: After the whole, these by turns; a day is short.
TURNS = ("day", "day", "day", "day", "birth", "machine", "kill")


def rounds(part: str | None, seed: int | None) -> Iterator[tuple[str, int]]:
    """Which part with which seed, one after the other."""
    fresh = secrets.randbits(32) if seed is None else seed
    if part is not None:
        yield part, fresh
        if seed is not None:
            return
    else:
        yield "whole", fresh
        yield "whole_os", fresh
    for number, turn in enumerate(cycle((part,) if part else TURNS), 1):
        yield turn, fresh + number


def main(words: list[str] | None = None) -> int:
    """Hunt; 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.long", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args(words)
    logging.disable(logging.CRITICAL)
    until = time.monotonic() + given.seconds
    for part, seed in rounds(given.part, given.seed):
        say(f"{part} seed {seed}")
        began = time.monotonic()
        try:
            told = PARTS[part](seed)
        except Exception:  # noqa: BLE001 - whatever it is, it was found
            traceback.print_exc()
            say(f"FOUND: python -m tests.crash.long --part {part} --seed {seed}")
            return 1
        say(f"  {told} in {time.monotonic() - began:.0f} s")
        if time.monotonic() > until:
            break
    return 0


def say(text: str) -> None:
    """Print at once: the seed must be there when the machine stops."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
