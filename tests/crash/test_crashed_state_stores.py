"""Every state store agrees with the core after power cuts, kills and failing disks.

These tests run slices with fixed seeds; ``make crash`` runs everything with fresh seeds.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from escrowmq.testing.faulty_disk import FaultyDisk
from tests.crash.driver import BORN, POLICY, Driver
from tests.crash.explore import Exploration
from tests.crash.kill_loop import kill_loop
from tests.crash.random_day import random_day
from tests.crash.state_stores import KINDS, policy_with
from tests.crash.test_every_crash_point import positions
from tests.crash.test_state_machine import run
from tests.crash.workload import scripted

SEED = 20_261_118

pytestmark = pytest.mark.parametrize("kind", KINDS)


def driver_with(kind: str, folder: Path) -> Driver:
    return Driver(FaultyDisk(BORN), policy=policy_with(POLICY, kind, folder))


def test_a_power_cut_at_any_operation_leaves_it_repairable(kind: str, tmp_path: Path) -> None:
    driver = driver_with(kind, tmp_path)
    scripted(driver)
    exploration = Exploration(driver, seed=SEED)
    for case in exploration.cases(positions(exploration, 29, 3), most=3, subsets=2):
        exploration.judge(case)
    assert exploration.tally.points > 20


def test_it_goes_on_after_a_power_cut(kind: str, tmp_path: Path) -> None:
    driver = driver_with(kind, tmp_path)
    random_day(driver, Random(SEED), 40)
    exploration = Exploration(driver, seed=SEED)
    for case in exploration.cases(positions(exploration, 61, 5), most=1):
        exploration.judge(case, go_on=True)


def test_any_commands_in_any_order_leave_it_equal(kind: str, tmp_path: Path) -> None:
    run(examples=12, steps=30, fixed=True, policy=policy_with(POLICY, kind, tmp_path))


def test_a_killed_process_leaves_it_repairable(kind: str, tmp_path: Path) -> None:
    report = kill_loop(SEED, 3, tmp_path, state_store=kind)
    assert report.kills == 3
