"""Stepping back for a broker on the same machine, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from escrowmq.pipeline.priority import AUTOGROUP

PROGRAM = """
import os
from escrowmq.pipeline import priority
priority.AUTOGROUP = type(priority.AUTOGROUP)({place!r})
priority.step_back(7)
print(os.nice(0))
"""


def stepped_back(place: str, *, is_session: bool) -> int:
    """The niceness of a process that stepped back by seven."""
    before = subprocess.run(
        [sys.executable, "-c", "import os; print(os.nice(0))"],
        check=True,
        capture_output=True,
        text=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(place=place)],
        check=True,
        capture_output=True,
        text=True,
        start_new_session=is_session,
    )
    return int(done.stdout) - int(before.stdout)


def test_a_session_of_its_own_counts_as_one(tmp_path: Path) -> None:
    place = tmp_path / "autogroup"
    assert stepped_back(str(place), is_session=True) == 7
    assert place.read_text(encoding="ascii") == "7"


def test_part_of_another_session_leaves_that_alone(tmp_path: Path) -> None:
    place = tmp_path / "autogroup"
    assert stepped_back(str(place), is_session=False) == 7
    assert not place.exists()


@pytest.mark.parametrize("place", ["/nowhere/autogroup", str(AUTOGROUP)])
def test_a_system_with_or_without_groups_will_do(place: str) -> None:
    assert stepped_back(place, is_session=True) == 7
