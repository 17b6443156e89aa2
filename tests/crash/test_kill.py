"""A process killed in the middle of its work breaks none of its promises."""

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


#: A bug, and the judge's messages that may report it.
PLANTS = {
    # The last batch was answered but not written: a row, a decision or a queue place is gone.
    "reply_before_write": r"gone|are left|can only be|was \d+-\d+|is lost",
    # A message has a second queue place, or another message's place.
    "decide_twice": r"is in .* at \d+ and at \d+|, and now ",
    # A needed half message lost its bytes; sent again, it is held a second time.
    "forget_the_needed": r"cannot be read|are left|was answered|was forgotten|was held at",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_caught(tmp_path: Path, plant: str) -> None:
    with pytest.raises(Wrong, match=PLANTS[plant]):
        kill_loop(SEED, 20, tmp_path, plant=plant)
