"""A broker whose state store is slow, stuck or broken."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from escrowmq.broker.native.status import status
from escrowmq.broker.write import following
from escrowmq.model.errors import Unavailable
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.transaction.state_store import StateBatch, StatesLostTrack, StateStore
from tests.unit.broker.state_store_brokers import broker, follower, held, held_again, run_by_hand
from tests.unit.broker.wire import COMMIT, END, SEND, Peer, ending, eventually, half

DEADLINE_S = 20


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    run_by_hand(monkeypatch)


async def test_a_state_store_that_is_too_slow_refuses_half_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LAG_ROWS_MAX", -1)
    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        refused = await peer.ask(SEND, half("t1"), b"paid")
        assert "state_store_behind" in refused.remark


async def test_an_unknown_error_keeps_it_away_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        states = follower(server).follower.states
        follow = states.follow

        def fail(batch: StateBatch) -> int:
            # A batch that only moves the position would fail before the half message is sent.
            if len(batch.appended):
                raise ValueError("a bug")
            return follow(batch)

        with monkeypatch.context() as failing:
            failing.setattr(states, "follow", fail)
            assert (await peer.ask(SEND, half("t1"), b"paid")).code == ResponseCode.SUCCESS
            await eventually(lambda: status(server.broker).state_store_state == "away")
        assert await held(server) == [0]
        assert "state_store_failed" in caplog.text
        assert "a bug" in caplog.text


async def test_a_scan_that_loses_track_beside_a_batch_stops_nothing(tmp_path: Path) -> None:
    scanning, may_fail = threading.Event(), threading.Event()

    def lose(_: StateStore) -> int:
        scanning.set()
        assert may_fail.wait(DEADLINE_S)
        raise StatesLostTrack

    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        scan = asyncio.create_task(led.ask(lose))
        await eventually(scanning.is_set)
        # The batch waits behind the scan.
        await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: led._is_busy)
        may_fail.set()
        with pytest.raises(Unavailable, match="during a scan"):
            await scan
        assert await held_again(server) == [0]
        assert status(server.broker).state_store_disagreed == 0


async def test_a_bug_in_the_follower_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, "sql") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        with monkeypatch.context() as failing:
            failing.setattr(led.follower, "_followed", None)
            await peer.ask(SEND, half("t1"), b"paid")
            await eventually(lambda: status(server.broker).state_store_state == "away")
        assert "not callable" in caplog.text
        assert await held_again(server) == [0]


async def test_a_state_store_that_does_not_answer_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SILENT_S", 0.02)
    may_answer = threading.Event()
    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        states = follower(server).follower.states
        follow = states.follow

        def slow(batch: StateBatch) -> int:
            assert not len(batch.appended) or may_answer.wait(DEADLINE_S)
            return follow(batch)

        await held(server)
        monkeypatch.setattr(states, "follow", slow)
        first = await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: status(server.broker).state_store_state == "away")
        refused = await peer.ask(SEND, half("t2"), b"paid")
        assert "not answered" in refused.remark
        await peer.ask(END, ending(first, COMMIT))
        may_answer.set()
        await eventually(lambda: status(server.broker).state_store_state == "follows")
        assert await held(server) == []


async def test_a_stop_does_not_wait_for_a_state_store_that_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "CLOSE_S", 0.02)
    may_end = threading.Event()

    def stick(_: object) -> int:
        may_end.wait(DEADLINE_S)
        raise Unavailable("state_store_away", "late")

    async with broker(tmp_path, "mapped") as server:
        peer = await Peer.to(server.broker_address)
        led = follower(server)
        await held(server)
        monkeypatch.setattr(led.follower.states, "follow", stick)
        await peer.ask(SEND, half("t1"), b"paid")
        await eventually(lambda: led._is_busy)
    assert "state_store_stuck" in caplog.text
    may_end.set()
    await eventually(lambda: not led._is_busy)


async def test_scans_wait_until_it_has_caught_up(tmp_path: Path) -> None:
    async with broker(tmp_path, "mapped") as server:
        led = follower(server)
        await held(server)
        led.follower._must_replace = True
        with pytest.raises(Unavailable, match="brought up"):
            await led.ask(lambda states: states.low_water())
        led._go_on()

        def fail(_: StateStore) -> int:
            raise Unavailable("state_store_away", "gone")

        await held(server)
        with pytest.raises(Unavailable, match="during a scan"):
            await led.ask(fail)
        assert await held_again(server) == []
