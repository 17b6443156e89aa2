"""A short fuzz run with fixed seeds; ``tests/fuzz/remoting.py`` runs for as many frames as told."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.fuzz import remoting as module
from tests.fuzz.remoting import BODIES, HEADERS, fuzz, main

FRAMES = 1_200


@pytest.mark.parametrize("seed", [1, 20_240_601])
def test_spoilt_frames_give_violations_and_nothing_else(seed: int) -> None:
    counts = fuzz(seed, FRAMES)
    assert counts["frames"] == FRAMES
    # The fuzzer reaches the readers: frames come through, and both outcomes occur.
    assert counts["split"] > FRAMES / 4
    assert counts["read"] > counts["split"]
    assert counts["violations"] > counts["split"]


def test_every_header_and_body_is_tried() -> None:
    assert len(HEADERS) > 35
    assert len(BODIES) > 25


def test_a_finding_is_told_with_the_seed_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_something(_random: Random, _counts: Counter[str]) -> None:
        raise IndexError

    monkeypatch.setattr(module, "try_one", find_something)
    assert main(["--frames", "5", "--seed", "3"]) == 1
    assert "seed 3, frame 0" in capsys.readouterr().out


def test_nothing_found_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--frames", "5", "--seed", "3"]) == 0
    assert "nothing found: 5 frames" in capsys.readouterr().out
