"""A short fuzz run against a live broker; ``make fuzz`` is the full one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.broker import Found, fuzz, judge_lines, main

FRAMES = 8_000


def test_a_broker_stands_malformed_frames(tmp_path: Path) -> None:
    counts = fuzz(1, FRAMES, tmp_path)
    assert counts["frames"] >= FRAMES
    # The run is meaningful: the broker answers, accepts some requests, and serves other clients.
    assert counts["answers"] > FRAMES / 10
    assert counts["successes"] > FRAMES / 50
    assert counts["asked"] > 0


def test_a_line_that_speaks_of_no_limit_is_found() -> None:
    judge_lines(["2026-01-31T12:00:00Z WARNING escrowmq.broker.net.limits frame_malformed"])
    with pytest.raises(Found, match="request_failed"):
        judge_lines(["2026-01-31T12:00:00Z ERROR escrowmq.broker.net.requests request_failed"])


def test_a_finding_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_something(seed: int, _frames: int, _directory: Path) -> None:
        raise Found(f"something with seed {seed}")

    monkeypatch.setattr("tests.fuzz.broker.fuzz", find_something)
    assert main(["--frames", "5", "--seed", "3"]) == 1
    assert "something with seed 3" in capsys.readouterr().out
