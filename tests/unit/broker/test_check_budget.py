"""How many back-checks of one producer group, and of the broker, are under way at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.broker.checks import checking
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader
from escrowmq.testing import ManualClock
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.asking import (
    answering,
    check,
    header_of,
    is_check,
    obey,
    producer,
    was_asked,
)
from tests.unit.broker.native_peer import ask, hold, sent_in
from tests.unit.broker.test_broker_rounds import after
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    T0,
    UNKNOWN,
    Peer,
    half,
    serving,
)

if TYPE_CHECKING:
    import pytest

POLICY = CheckPolicy()


async def beat_as_producer(peer: Peer) -> None:
    """Send a heartbeat; every check that was sent before has then arrived."""
    said = Heartbeat(client_id="p", producers=(ProducerMembership(group="pay"),))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said))


async def test_a_backlog_of_some_groups_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "ASKED_MAX", 8)
    async with serving(tmp_path, policy={"checked_by": "broker"}) as server:
        last = await producer(server, "p", group="z")
        for group in ("a", "b", "c"):
            await producer(server, group, group=group)
            rows = [sent_in(f"{group}{number}") for number in range(20)]
            await ask(last, NativeCode.HOLD_MANY, HoldManyHeader(producer_group=group), rows)
        await hold(last, "t1", producer_group="z")
        await after(server, POLICY.check_after_ms)
        assert await was_asked(last)
        assert server.broker.rounds.last.did["asked"] >= 7


async def test_a_slow_producer_is_never_asked_more_than_the_budget(tmp_path: Path) -> None:
    """For ten minutes the producer answers 20 checks per second; the others wait, oldest first."""
    clock, budget, answers = ManualClock(T0), 1_000, 100
    policy = {"checked_by": "broker", "check_budget_per_group": budget}
    async with serving(tmp_path, clock, policy=policy) as server:
        peer = await producer(server, "p")
        header = HoldManyHeader(producer_group="pay")
        for at in range(0, 100_000, 4_000):
            rows = [sent_in(f"t{at + number}") for number in range(4_000)]
            await ask(peer, NativeCode.HOLD_MANY, header, rows)
        clock.advance(ms=POLICY.check_after_ms)
        waiting: list[CheckTransactionHeader] = []
        asked: list[int] = []
        for _ in range(120):
            await server.broker.rounds.run()
            await beat_as_producer(peer)
            new = [header_of(one) for one in peer.kept if is_check(one)]
            peer.kept.clear()
            waiting += new
            asked += [one.half_offset for one in new]
            assert len(waiting) == budget
            for one in waiting[: answers - 1]:
                peer.tell(END, answering(one, COMMIT if one.half_offset % 2 else ROLLBACK))
            # The answers are durable in order, so the last one is waited for.
            await peer.ask(END, answering(waiting[answers - 1], ROLLBACK))
            del waiting[:answers]
            clock.advance(ms=5_000)
        assert asked == list(range(budget + 119 * answers))


async def test_the_budget_is_free_again_when_a_producer_answers_nothing(tmp_path: Path) -> None:
    policy = {"checked_by": "broker", "check_budget_per_group": 2}
    async with serving(tmp_path, policy=policy) as server:
        peer = await producer(server, "p")
        for number in range(3):
            await peer.ask(SEND, half(f"t{number}"), b"paid")
        await after(server, POLICY.check_after_ms)
        assert [(await check(peer))[0].half_offset for _ in range(2)] == [0, 1]
        await after(server, POLICY.check_interval_ms - 1)
        assert not await was_asked(peer)
        await after(server, 1)
        assert [(await check(peer))[0].half_offset for _ in range(2)] == [2, 0]


async def test_a_pipeline_has_the_same_budget(tmp_path: Path) -> None:
    async with serving(tmp_path, policy={"check_budget_per_group": 2}) as server:
        peer = await producer(server, "p")
        for number in range(3):
            await peer.ask(SEND, half(f"t{number}"), b"paid")
        outcomes = [await obey(server, VerdictKind.ASK, number) for number in range(3)]
        assert outcomes == ["asked", "asked", "busy"]
        header, _ = await check(peer)
        await peer.ask(END, answering(header, UNKNOWN))
        assert await obey(server, VerdictKind.ASK, 2) == "asked"
