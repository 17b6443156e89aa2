"""Delayed messages, and half messages whose delay starts at their commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.codes import ResponseCode
from tests.conformance.talk import clock_of, is_due
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    T0,
    Peer,
    ending,
    eventually,
    half,
    sending,
    serving,
    visible,
)

DELAYS = [
    ({"DELAY": "3"}, 10_000),
    ({"DELAY": "99"}, 7_200_000),
    ({"TIMER_DELAY_SEC": "20"}, 20_000),
    ({"TIMER_DELAY_MS": "1500"}, 1_500),
    ({"TIMER_DELIVER_MS": str(T0 + 30_000)}, 30_000),
]


@pytest.mark.parametrize(("properties", "delay_ms"), DELAYS)
async def test_a_half_message_with_a_delay_comes_that_long_after_its_commit(
    tmp_path: Path, properties: dict[str, str], delay_ms: int
) -> None:
    """Apache's broker silently loses it."""
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", **properties), b"later")
        clock.advance(ms=60_000)
        await peer.ask(END, ending(answer, COMMIT))
        clock.advance(ms=delay_ms - 1)
        assert not is_due(server)
        clock.advance(ms=1)
        await eventually(lambda: visible(server))
        (seen,) = visible(server)
        assert (seen.body, seen.topic) == (b"later", "orders")
        kept = parse_properties(seen.properties)
        assert (kept["REAL_TOPIC"], kept["TRAN_MSG"]) == ("orders", "true")


@pytest.mark.parametrize(("properties", "delay_ms"), DELAYS)
async def test_a_message_with_a_delay_comes_at_its_time(
    tmp_path: Path, properties: dict[str, str], delay_ms: int
) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(properties=properties), b"later")
        clock.advance(ms=delay_ms - 1)
        assert not is_due(server)
        clock.advance(ms=1)
        await eventually(lambda: visible(server))


async def test_a_rolled_back_half_message_with_a_delay_never_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", DELAY="1"), b"no")
        await peer.ask(END, ending(answer, ROLLBACK))
        clock_of(server).advance(ms=10_000)
        assert not is_due(server)
        assert visible(server) == []


async def test_a_delay_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", DELAY="1"), b"half")
        await peer.ask(END, ending(answer, COMMIT))
        await peer.ask(SEND, sending(properties={"DELAY": "1"}), b"plain")
    async with serving(tmp_path) as server:
        assert visible(server) == []
        clock_of(server).advance(ms=1_000)
        await eventually(lambda: len(visible(server)) == 2)


@pytest.mark.parametrize("late", [{"TIMER_DELIVER_MS": str(T0 - 1)}, {"DELAY": "0"}])
async def test_a_time_that_is_over_is_now(tmp_path: Path, late: dict[str, str]) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(properties=late), b"now")
        assert len(visible(server)) == 1


async def test_a_message_may_wait_for_ten_years_and_no_longer(tmp_path: Path) -> None:
    ten_years_s = 10 * 365 * 86_400
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for delay_s, code in (
            (ten_years_s, ResponseCode.SUCCESS),
            (ten_years_s + 1, ResponseCode.MESSAGE_ILLEGAL),
            (10 * ten_years_s, ResponseCode.MESSAGE_ILLEGAL),
        ):
            waits = sending(properties={"TIMER_DELAY_SEC": str(delay_s)})
            assert (await peer.ask(SEND, waits, b"later")).code == code
        assert visible(server) == []
