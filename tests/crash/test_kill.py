"""A process killed in the middle of its work breaks no promise that it gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_loop import kill_loop
from tests.crash.model import Wrong

SEED = 20_240_611


def test_clients_of_a_killed_process_were_told_the_truth(tmp_path: Path) -> None:
    report = kill_loop(SEED, 9, tmp_path)
    print(f"seed {SEED}: {report}")  # noqa: T201 - shown when it fails
    assert report.kills == 9
    assert report.lost > 0
    assert report.log_start > 0, "retention had nothing to do"


@pytest.mark.parametrize("plant", ["reply_before_write", "decide_twice", "forget_the_needed"])
def test_a_planted_bug_is_caught(tmp_path: Path, plant: str) -> None:
    with pytest.raises(Wrong):
        kill_loop(SEED, 20, tmp_path, plant=plant)
