"""Every state store agrees with the core after power cuts, kills and failing disks.

These tests run slices with fixed seeds; ``make crash`` runs everything with fresh seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.transaction.policy import CheckPolicy
from tests.crash.databases import KINDS, Databases, databases, policy_with
from tests.crash.driver import BORN, POLICY, Driver
from tests.crash.explore import Exploration
from tests.crash.kill_loop import kill_loop
from tests.crash.random_day import random_day
from tests.crash.test_every_crash_point import positions
from tests.crash.test_state_machine import run
from tests.crash.workload import scripted

SEED = 20_261_118

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def made() -> Iterator[Databases]:
    with databases() as make:
        yield make


@pytest.fixture
def policy(kind: str, made: Databases, tmp_path: Path) -> CheckPolicy:
    """The settings with an empty state store."""
    return policy_with(POLICY, made(kind, tmp_path))


def test_a_power_cut_at_any_operation_leaves_it_repairable(policy: CheckPolicy) -> None:
    driver = Driver(FaultyDisk(BORN), policy=policy)
    scripted(driver)
    exploration = Exploration(driver, seed=SEED)
    for case in exploration.cases(positions(exploration, 29, 3), most=3, subsets=2):
        exploration.judge(case)
    assert exploration.tally.points > 20


def test_it_goes_on_after_a_power_cut(policy: CheckPolicy) -> None:
    driver = Driver(FaultyDisk(BORN), policy=policy)
    random_day(driver, Random(SEED), 40)
    exploration = Exploration(driver, seed=SEED)
    for case in exploration.cases(positions(exploration, 61, 5), most=1):
        exploration.judge(case, go_on=True)


def test_any_commands_in_any_order_leave_it_equal(policy: CheckPolicy) -> None:
    run(examples=12, steps=30, fixed=True, policy=policy)


def test_a_killed_process_leaves_it_repairable(policy: CheckPolicy, tmp_path: Path) -> None:
    report = kill_loop(SEED, 3, tmp_path, policy=policy)
    assert report.kills == 3
