"""When a broker that checks by itself asks a producer, and how each transaction ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.server import Server
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.conformance.talk import clock_of
from tests.unit.broker.asking import ASK, answering, check, obey, producer, row, was_asked
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    T0,
    UNKNOWN,
    Peer,
    ending,
    eventually,
    half,
    sending,
    serving,
    visible,
)

BY_BROKER: dict[str, Any] = {"policy": {"checked_by": "broker"}}
POLICY = CheckPolicy()
HOUR_MS = 3_600_000


async def after(server: Server, ms: int) -> None:
    """Let time pass, and run a round of checks."""
    clock_of(server).advance(ms=ms)
    await server.broker.rounds.run()


async def test_no_check_is_sent_before_the_time_that_the_message_names(tmp_path: Path) -> None:
    """RocketMQ writes the half message again at each scan, and counts each as a check."""
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t", CHECK_IMMUNITY_TIME_IN_SECONDS="600"), b"x")
        end_of_log = server.broker.store.log.end
        for _ in range(19):
            await after(server, POLICY.check_interval_ms)
        await after(server, 29_999)
        assert not await was_asked(peer)
        assert row(server).checks_sent == 0
        assert server.broker.store.log.end == end_of_log
        await after(server, 1)
        await check(peer)
        assert row(server).checks_sent == 1


async def test_an_answer_with_the_first_offsets_works_after_a_check(tmp_path: Path) -> None:
    """RocketMQ's check makes the producer's offsets stale, so that the answer is lost."""
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        answer = await peer.ask(SEND, half("t"), b"x")
        await after(server, POLICY.check_after_ms)
        header, _ = await check(peer)
        assert (await peer.ask(END, ending(answer, COMMIT))).code == ResponseCode.SUCCESS
        assert (await peer.ask(END, answering(header, COMMIT))).code == ResponseCode.SUCCESS
        assert [one.body for one in visible(server)] == [b"x"]
        assert row(server).state is State.COMMITTED


async def test_a_transaction_that_waits_does_not_delay_the_next_one(tmp_path: Path) -> None:
    """RocketMQ scans in the order of the store, and stops at the first one that must wait."""
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        for number in range(3):
            waits = half(f"waits-{number}", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
            await peer.ask(SEND, waits, b"x")
        await peer.ask(SEND, half("due"), b"x")
        await after(server, POLICY.check_after_ms)
        header, _ = await check(peer)
        assert header.transaction_id == "due"
        assert not await was_asked(peer)


@pytest.mark.parametrize("ahead_ms", [-100 * HOUR_MS, 0, 100 * HOUR_MS])
async def test_the_age_of_a_half_message_counts_on_the_brokers_clock(
    tmp_path: Path, ahead_ms: int
) -> None:
    """RocketMQ asks at once, too early, or gives up, if the producer's clock is wrong."""
    header = sending(
        properties={"UNIQ_KEY": "t", "TRAN_MSG": "true", "PGROUP": "pay"},
        born_at_ms=T0 + ahead_ms,
    )
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, header, b"x")
        await after(server, POLICY.check_after_ms - 1)
        assert not await was_asked(peer)
        await after(server, 1)
        _, asked = await check(peer)
        assert asked.born_at_ms == T0 + ahead_ms
        assert row(server).state is State.PREPARED


async def test_an_undecided_transaction_is_asked_about_once_per_interval(tmp_path: Path) -> None:
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t"), b"x")
        await after(server, POLICY.check_after_ms)
        await check(peer)
        await after(server, 1)
        assert not await was_asked(peer)
        assert row(server).checks_sent == 1
        await after(server, POLICY.check_interval_ms)
        await check(peer)
        assert row(server).checks_sent == 2


async def test_consumers_see_all_that_is_committed_and_nothing_else(tmp_path: Path) -> None:
    """The five ways in which RocketMQ's integration test ends its transactions."""
    async with serving(tmp_path, **BY_BROKER) as server:
        peer = await producer(server, "p")
        ways = ("commit", "rollback", "then commit", "then rollback", "unknown")
        held = {way: await peer.ask(SEND, half(way), way.encode()) for way in ways}
        first = {"commit": COMMIT, "rollback": ROLLBACK}
        for way, answer in held.items():
            peer.tell(END, ending(answer, first.get(way, UNKNOWN)))
        await eventually(lambda: visible(server))
        said = {"then commit": COMMIT, "then rollback": ROLLBACK, "unknown": UNKNOWN}
        await after(server, POLICY.check_after_ms)
        for _ in said:
            header, asked = await check(peer)
            peer.tell(END, answering(header, said[asked.body.decode()]))
        await eventually(lambda: len(visible(server)) == 2)
        for _ in range(POLICY.checks_max):
            await after(server, POLICY.check_interval_ms)
            for asked_of in [one for one in peer.kept if not one.is_response]:
                peer.kept.remove(asked_of)
            await peer.ask(SEND, sending("others"), b"")
        await after(server, POLICY.park_after_ms)
        assert [row(server, at).state for at in range(5)] == [
            State.COMMITTED,
            State.ROLLED_BACK,
            State.COMMITTED,
            State.ROLLED_BACK,
            State.PARKED,
        ]
        assert [one.body for one in visible(server)] == [b"commit", b"then commit"]


async def test_a_check_about_the_longest_topic_names_it(tmp_path: Path) -> None:
    """RocketMQ writes a longer name than the layout of a check can hold."""
    topic = "t" * 127
    header = sending(topic, {"UNIQ_KEY": "t", "TRAN_MSG": "true", "PGROUP": "pay"})
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, header, b"x")
        assert await obey(server, ASK) == "asked"
        _, asked = await check(peer)
        assert (asked.topic, asked.body) == (topic, b"x")


async def test_a_producer_is_unknown_after_two_minutes_without_a_heartbeat(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t"), b"x")
        clock_of(server).advance(ms=120_000)
        server.broker.heartbeats.expire()
        assert await obey(server, ASK) == "asked"
        # Requests are no heartbeats.
        await peer.ask(SEND, sending(), b"x")
        clock_of(server).advance(ms=1)
        server.broker.heartbeats.expire()
        assert await obey(server, ASK, checks_sent=1) == "no_producer"
        other = await Peer.to(server.broker_address)
        assert (await other.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS
