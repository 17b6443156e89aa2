"""The pipeline lowers its priority for a broker on the same machine. Runs separate processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from escrowmq.pipeline.priority import LEFT_OVER

PROGRAM = """
import os, subprocess, sys
from escrowmq.pipeline.priority import step_back
before = os.nice(0)
if {is_elsewhere}:
    del os.SCHED_IDLE
step_back({niceness})
print(before, flush=True)
subprocess.run([sys.executable, "-c", "import os; print(os.nice(0), os.sched_getscheduler(0))"])
"""


def stepped_back(niceness: int, *, is_elsewhere: bool = False) -> tuple[int, int]:
    """Return the added niceness and the scheduling policy of a child after `step_back`."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(niceness=niceness, is_elsewhere=is_elsewhere)],
        check=True,
        capture_output=True,
        text=True,
    )
    before, after, policy = map(int, done.stdout.split())
    return after - before, policy


@pytest.mark.parametrize("niceness", [0, 7])
def test_a_niceness_is_passed_on(niceness: int) -> None:
    assert stepped_back(niceness) == (niceness, os.SCHED_OTHER)


def test_the_idle_policy_is_a_policy_of_its_own() -> None:
    assert stepped_back(LEFT_OVER) == (19, os.SCHED_IDLE)


def test_a_system_without_that_policy_gets_the_most_niceness() -> None:
    assert stepped_back(LEFT_OVER, is_elsewhere=True) == (19, os.SCHED_OTHER)
