"""Messages that consumers could not handle: when they are redelivered, and when no more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from escrowmq.protocol.message.delay_levels import DELAY_LEVELS, DelayLevels
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import SendHeader
from tests.conformance.talk import beat, clock_of, give_back, is_due, locking, put_group
from tests.unit.broker.wire import (
    SEND,
    Peer,
    eventually,
    sending,
    serving,
    visible,
)

RETRY = "%RETRY%shop"
DEAD = "%DLQ%shop"


async def test_retries_come_later_each_time_and_the_seventeenth_is_dead(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await peer.ask(SEND, sending(), b"x")
        place = ("orders", 1)

        def came(count: int) -> bool:
            return len(visible(server, RETRY, 0)) == count

        # Only an explicit request gets the first two levels, one and five seconds.
        for number, delay_ms in enumerate(DelayLevels.parse(DELAY_LEVELS).waits_ms[2:], start=1):
            assert await give_back(peer, server, *place) == ResponseCode.SUCCESS
            clock.advance(ms=delay_ms - 1)
            assert not is_due(server)
            clock.advance(ms=1)
            await eventually(partial(came, number))
            place = (RETRY, 0)
        assert visible(server, RETRY, 0)[-1].reconsume_times == 16
        assert await give_back(peer, server, *place) == ResponseCode.SUCCESS
        (dead,) = visible(server, DEAD, 0)
        assert (dead.body, dead.reconsume_times) == (b"x", 17)
        assert server.broker.topics.named(DEAD).perm == 6


@pytest.mark.parametrize(("asked", "delay_ms"), [(1, 1_000), (18, 7_200_000), (99, 7_200_000)])
async def test_a_consumer_may_ask_for_a_delay(tmp_path: Path, asked: int, delay_ms: int) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await peer.ask(SEND, sending(), b"x")
        await give_back(peer, server, delay_level=asked)
        clock_of(server).advance(ms=delay_ms - 1)
        assert not is_due(server)
        clock_of(server).advance(ms=1)
        await eventually(lambda: visible(server, RETRY, 0))


async def test_a_groups_owner_sets_how_often_a_message_comes_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await put_group(peer, retries_max=0)
        await peer.ask(SEND, sending(), b"x")
        await give_back(peer, server)
        assert len(visible(server, DEAD, 0)) == 1


async def test_without_retry_queues_a_message_comes_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await put_group(peer, retry_queue_count=0)
        await beat(peer)
        await peer.ask(SEND, sending(), b"x")
        assert await give_back(peer, server) == ResponseCode.SUCCESS
        assert server.broker.topics.get(RETRY) is None
        assert not server.broker.store.table.end


async def test_retries_are_spread_over_the_queues_that_the_group_has_for_them(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await put_group(peer, retry_queue_count=2)
        await peer.ask(SEND, sending(), b"x")
        for _ in range(4):
            await give_back(peer, server, delay_level=1)
        clock_of(server).advance(ms=1_000)
        await eventually(lambda: len(visible(server, RETRY, 0)) == 2)
        assert len(visible(server, RETRY, 1)) == 2
        assert server.broker.topics.named(RETRY).read_queue_count == 2


# A stock consumer that cannot give a message back sends it again itself.


def resent(times: int, retries_max: int | None) -> SendHeader:
    properties = {"RETRY_TOPIC": "orders", "DELAY": "3", "UNIQ_KEY": "u"}
    return sending(
        RETRY,
        properties=properties,
        queue_id=0,
        reconsume_times=times,
        max_reconsume_times=retries_max,
    )


@pytest.mark.parametrize(
    ("times", "retries_max", "is_dead"),
    [(1, 16, False), (16, 16, False), (17, 16, True), (16, None, False), (17, None, True)],
)
async def test_a_resent_message_waits_or_is_dead_as_if_it_were_given_back(
    tmp_path: Path, times: int, retries_max: int | None, *, is_dead: bool
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, resent(times, retries_max), b"x")
        assert answer.code == ResponseCode.SUCCESS
        assert len(visible(server, DEAD, 0)) == is_dead
        clock_of(server).advance(ms=10_000)
        await eventually(lambda: len(visible(server, RETRY, 0)) == (not is_dead))


async def test_an_ordered_consumer_resends_what_it_gives_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(RequestCode.LOCK_BATCH_MQ, body=locking())
        await peer.ask(SEND, resent(16, 16), b"x")
        (dead,) = visible(server, DEAD, 0)
        assert parse_properties(dead.properties)["RETRY_TOPIC"] == "orders"
        clock_of(server).advance(ms=60_000)
        await peer.ask(SEND, resent(16, 16), b"y")
        assert len(visible(server, DEAD, 0)) == 1


async def test_nothing_is_resent_for_a_group_that_may_not_be(tmp_path: Path) -> None:
    async with serving(tmp_path, topics={"auto_create_groups": False}) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, resent(1, 16), b"x")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
