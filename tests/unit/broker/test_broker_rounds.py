"""The broker checks undecided transactions by itself, or leaves it to a living pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.checks import rounds
from escrowmq.broker.server import Server
from escrowmq.broker.write import pace
from escrowmq.protocol.message.message_views import PARKED_TOPIC
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.unit.broker.asking import (
    answering,
    check,
    producer,
    row,
    was_asked,
)
from tests.unit.broker.native_peer import ask, hold, sent
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    UNKNOWN,
    Peer,
    clock_of,
    eventually,
    half,
    serving,
    visible,
)

POLICY = CheckPolicy()
AUTO: dict[str, Any] = {"policy": {"checked_by": "auto"}}
LEDGER = "11111111-2222-3333-4444-555555555555"
MINUTE_MS = 60_000


async def after(server: Server, ms: int) -> None:
    """Let time pass, and run a round."""
    clock_of(server).advance(ms=ms)
    await server.broker.rounds.run()


async def status(server: Server) -> StatusAnswer:
    peer = await Peer.to(server.broker_address)
    told = (await ask(peer, NativeCode.STATUS)).header
    assert isinstance(told, StatusAnswer)
    return told


async def beat(peer: Peer, **fields: Any) -> str:  # noqa: ANN401 - fields of the header
    header = HeartbeatHeader(pipeline="host/1", round_ms_max=600_000, **fields)
    return str((await ask(peer, NativeCode.PIPELINE_HEARTBEAT, header)).header.checker)


# Asking.


@pytest.mark.parametrize("checked_by", ["auto", "broker"])
async def test_a_broker_alone_asks_the_producer(tmp_path: Path, checked_by: str) -> None:
    async with serving(tmp_path, policy={"checked_by": checked_by}) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.check_after_ms - 1)
        assert not await was_asked(peer)
        await after(server, 1)
        header, _ = await check(peer)
        peer.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))
        assert [one.body for one in visible(server)] == [b"paid"]
        told = await status(server)
        assert (told.checker, told.checked_by, told.round_error) == ("broker", checked_by, "")


async def test_while_clients_send_a_round_asks_in_small_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "IN_USE_S", 60)
    monkeypatch.setattr(rounds, "VERDICTS_BESIDE", 2)
    async with serving(tmp_path, policy={"checked_by": "broker"}) as server:
        peer = await producer(server, "p")
        for number in range(5):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        await after(server, POLICY.check_after_ms)
        asked = [(await check(peer))[0].half_offset for _ in range(5)]
        assert asked == list(range(5))
        assert server.broker.rounds.last.did["asked"] == 5


async def test_without_a_call_the_broker_looks_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        header, _ = await check(peer)
        assert header.transaction_id == "t1"


@pytest.mark.parametrize("checked_by", ["pipeline", "off"])
async def test_a_broker_that_must_not_check_does_not(tmp_path: Path, checked_by: str) -> None:
    async with serving(tmp_path, policy={"checked_by": checked_by}) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.park_after_ms)
        assert not await was_asked(peer)
        assert row(server).state is State.PREPARED
        assert (await status(server)).checker == {"off": "none"}.get(checked_by, checked_by)


async def test_a_broker_whose_checks_are_off_refuses_those_of_a_pipeline(tmp_path: Path) -> None:
    async with serving(tmp_path, policy={"checked_by": "off"}) as server:
        peer = await producer(server, "p")
        for name in "abc":
            await hold(peer, name)
        rows = [
            VerdictRow(half_offset=at, verdict=kind, state=0, checks_sent=0, reason=reason)
            for at, kind, reason in (
                (0, "ask", None),
                (0, "park", "exhausted"),
                (0, "park", "past_retention"),
                (0, "park", "home_does_not_know"),
                (1, "commit", None),
                (2, "rollback", None),
            )
        ]
        told = await ask(peer, NativeCode.OBEY_VERDICTS, rows=rows)
        assert [one.outcome for one in told.rows] == [
            *["busy"] * 3,
            "parked",
            "committed",
            "rolled_back",
        ]


async def test_an_absent_producer_is_no_attempt(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.check_after_ms)
        assert (await status(server)).round_did == "no_producer=1"
        assert row(server).checks_sent == 0
        asked = await producer(server, "p")
        await after(server, 0)
        await check(asked)


async def test_after_the_last_check_the_transaction_is_parked(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.check_after_ms)
        for _ in range(POLICY.checks_max):
            header, _ = await check(peer)
            peer.tell(END, answering(header, UNKNOWN))
            await after(server, POLICY.check_interval_ms)
        assert row(server).state is State.PARKED
        assert not await was_asked(peer)


async def test_past_its_time_it_is_parked_without_a_producer(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.park_after_ms - 1)
        assert row(server).state is State.PREPARED
        await after(server, 1)
        assert row(server).state is State.PARKED


async def test_each_transaction_of_several_messages_is_asked_about_once(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await hold(peer, "t1", sent(b"a"), sent(b"b"))
        await after(server, POLICY.check_after_ms)
        header, _ = await check(peer)
        assert header.half_offset == 0
        assert not await was_asked(peer)


# After the last check.

ROLLS_BACK: dict[str, Any] = {
    "policy": {"checked_by": "broker", "after_last_check": "rollback", "checks_max": 2}
}


def discarded(server: Server) -> list[bytes]:
    pulled = server.broker.queues.pull(
        PARKED_TOPIC, 0, 0, count_max=10, bytes_max=10_000, codes=None
    )
    return [decode(one).body for one in pulled.messages]


async def give_up(server: Server, peer: Peer, checks: int = 2) -> None:
    """Answer each check with UNKNOWN, until the last one is over."""
    await after(server, POLICY.check_after_ms)
    for _ in range(checks):
        header, _ = await check(peer)
        peer.tell(END, answering(header, UNKNOWN))
        await after(server, POLICY.check_interval_ms)


async def test_rocketmqs_way_rolls_back_and_keeps_the_message(tmp_path: Path) -> None:
    async with serving(tmp_path, **ROLLS_BACK) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await give_up(server, peer)
        assert row(server).state is State.ROLLED_BACK
        assert discarded(server) == [b"paid"]
        told = await status(server)
        assert (told.parked, told.undecided, told.round_did) == (0, 0, "rolled_back=1")


async def test_a_transaction_with_a_ledger_is_never_rolled_back_by_time(tmp_path: Path) -> None:
    async with serving(tmp_path, **ROLLS_BACK) as server:
        peer = await producer(server, "p")
        await hold(peer, "t1", ledger=LEDGER, allowed_ms=MINUTE_MS)
        await give_up(server, peer)
        assert row(server).state is State.PARKED


async def test_a_restart_keeps_a_discarded_message(tmp_path: Path) -> None:
    async with serving(tmp_path, **ROLLS_BACK) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await give_up(server, peer)
        clock = clock_of(server)
    async with serving(tmp_path, clock, **ROLLS_BACK) as server:
        assert row(server).state is State.ROLLED_BACK
        assert discarded(server) == [b"paid"]


# Leading.


async def test_a_living_pipeline_leads_until_it_falls_silent(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        assert await beat(peer) == "pipeline"
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.check_after_ms)
        assert not await was_asked(peer)
        await after(server, 15_000)
        await check(peer)
        assert (await status(server)).checker == "broker"


async def test_a_stopping_pipeline_hands_over_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        assert await beat(peer) == "pipeline"
        assert await beat(peer, is_last=True) == "broker"
        clock_of(server).advance(ms=10 * MINUTE_MS)
        assert (await status(server)).pipeline_away_since_ms == 0
        await beat(peer)
        clock_of(server).advance(ms=10 * MINUTE_MS)
        assert (await status(server)).pipeline_away_since_ms > 0


async def test_a_pipeline_whose_rounds_fail_does_not_lead(tmp_path: Path) -> None:
    """Its heartbeats come, but for two check intervals no round has succeeded."""
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await beat(peer, round_ended_ago_ms=0)
        await after(server, POLICY.check_after_ms)
        waited_ms = 0
        while waited_ms < 2 * POLICY.check_interval_ms:
            assert await beat(peer, round_ended_ago_ms=None) == "pipeline"
            await after(server, 5_000)
            waited_ms += 5_000
        assert await beat(peer) == "pipeline"
        await after(server, 1)
        await check(peer)
        assert await beat(peer, round_ended_ago_ms=0) == "pipeline"


async def test_a_long_round_leads_within_its_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await after(server, POLICY.check_after_ms)
        for running_ms in range(0, 600_000, 10_000):
            assert await beat(peer, round_running_ms=running_ms) == "pipeline"
            await after(server, 10_000)
        assert await beat(peer, round_running_ms=600_000) == "broker"


async def test_rounds_that_hang_and_fail_one_after_another_lose_the_lead(tmp_path: Path) -> None:
    """Each of them is within its limit."""
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await beat(peer, round_running_ms=0)
        await after(server, POLICY.check_after_ms)
        told = []
        for _ in range(3):
            for running_ms in range(0, 590_000, 10_000):
                told.append(await beat(peer, round_running_ms=running_ms))
                await after(server, 10_000)
        patience_ms = 2 * POLICY.check_interval_ms
        assert told.index("broker") == (patience_ms + 600_000) // 10_000 + 1
        assert "pipeline" not in told[told.index("broker") :]
        await check(peer)
        assert await beat(peer, round_ended_ago_ms=0) == "pipeline"


async def test_an_idle_pipeline_needs_no_rounds_to_lead(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        for _ in range(100):
            assert await beat(peer, round_ended_ago_ms=3_600_000) == "pipeline"
            await after(server, 10_000)


async def test_heartbeats_of_many_pipelines_are_bounded(tmp_path: Path) -> None:
    async with serving(tmp_path, **AUTO) as server:
        peer = await producer(server, "p")
        for number in range(40):
            header = HeartbeatHeader(pipeline=f"host/{number}")
            await ask(peer, NativeCode.PIPELINE_HEARTBEAT, header)
        assert len(server.broker.life._heard) == 16
