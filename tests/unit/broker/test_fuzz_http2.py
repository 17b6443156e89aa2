"""A short fuzz run against the gRPC door; ``make fuzz`` is the full one."""

from __future__ import annotations

import pytest

from tests.fuzz.http2 import fuzz, judge_sent, main

FRAMES = 20_000


def test_the_door_stands_malformed_frames() -> None:
    counts = fuzz(1, FRAMES)
    assert counts["frames"] >= FRAMES
    # The run is meaningful: calls are handled, answers are sent, and connections are refused.
    assert counts["calls"] > FRAMES / 100
    assert counts["DATA"] > FRAMES / 10
    assert counts["ended_by_the_door"] > FRAMES / 1_000


def test_a_frame_that_is_cut_off_is_found() -> None:
    with pytest.raises(AssertionError, match="cut off"):
        judge_sent(b"\0\0\4\0\0\0\0\0\1..", {})  # type: ignore[arg-type]  # nothing is counted


def test_a_finding_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_something(seed: int, _frames: int) -> None:
        raise AssertionError(f"something with seed {seed}")

    monkeypatch.setattr("tests.fuzz.http2.fuzz", find_something)
    assert main(["--frames", "5", "--seed", "3"]) == 1
    assert "something with seed 3" in capsys.readouterr().out
