"""A pipeline's heartbeats: they come while a round runs, and tell how rounds go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.checks.leading import Checker
from escrowmq.pipeline.service import heartbeats as module
from escrowmq.pipeline.service.heartbeats import heartbeats
from escrowmq.pipeline.settle.round_progress import RoundProgress
from tests.unit.broker.wire import eventually, serving

AWAY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)


async def test_a_broker_follows_the_heartbeats_of_a_pipeline(tmp_path: Path) -> None:
    async with serving(tmp_path, policy={"checked_by": "auto"}) as server:
        broker, progress = server.broker, RoundProgress()
        beating = heartbeats([AWAY, server.broker_address], progress, round_ms_max=60_000)
        assert broker.leadership.look() is Checker.BROKER
        await asyncio.to_thread(beating.__enter__)
        await eventually(lambda: broker.leadership.look() is Checker.PIPELINE)
        await asyncio.to_thread(beating.__exit__, None, None, None)
        assert broker.leadership.look() is Checker.BROKER


async def test_a_heartbeat_tells_of_the_round_under_way_and_the_last_good_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, policy={"checked_by": "auto"}) as server:
        heard, progress = server.broker.life._heard, RoundProgress()
        beating = heartbeats([server.broker_address], progress, round_ms_max=60_000)
        await asyncio.to_thread(beating.__enter__)
        try:
            with progress.running():
                await eventually(
                    lambda: [one.round_ends_by_ms is not None for one in heard.values()] == [True]
                )
            progress.succeeded([server.broker_address])
            await eventually(
                lambda: (
                    [
                        (one.round_ends_by_ms is None, one.round_ended_at_ms is not None)
                        for one in heard.values()
                    ]
                    == [(True, True)]
                )
            )
        finally:
            await asyncio.to_thread(beating.__exit__, None, None, None)


def test_a_failed_round_ends_without_success() -> None:
    progress = RoundProgress()

    def fail() -> None:
        with progress.running():
            assert progress.running_ms() is not None
            raise RuntimeError("the job failed")

    with pytest.raises(RuntimeError):
        fail()
    assert progress.running_ms() is None
    assert progress.ended_ago_ms("a:1") is None
