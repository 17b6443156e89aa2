"""A process killed in the middle of its work breaks no promise that it gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_loop import kill_loop
from tests.crash.model import Wrong

SEED = 20_240_611


def test_clients_of_a_killed_process_were_told_the_truth(tmp_path: Path) -> None:
    print(f"seed {SEED}")  # noqa: T201 - shown when it fails
    report = kill_loop(SEED, 8, tmp_path)
    assert report.kills == 8
    assert report.lost > 0
    assert report.log_start > 0, "retention had nothing to do"


#: A bug, and how the judge may notice it.
PLANTS = {
    # Answers of the last batch were about nothing: a row, a decision or a place is gone.
    "reply_before_write": r"gone|are left|can only be|was \d+-\d+|is lost",
    # A message has a second place, or the place of another.
    "decide_twice": r"is in .* at \d+ and at \d+|, and now ",
    # The bytes of a half message that is still needed were deleted; sent again, it is held again.
    "forget_the_needed": r"cannot be read|are left|was answered|was forgotten|was held at",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_caught(tmp_path: Path, plant: str) -> None:
    with pytest.raises(Wrong, match=PLANTS[plant]):
        kill_loop(SEED, 20, tmp_path, plant=plant)
