"""Facts about attempts of Spark sinks, for drivers and for brokers that hold parts of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.model.limits_config import DAY_MS
from escrowmq.model.sink_attempt import GROUP_PREFIX, OPENING_TOPIC
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import AttemptRow, FoundAttemptRow, SoughtAttemptRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader, FindAttemptsHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.native_peer import ask, decide, hold, sent
from tests.unit.broker.wire import T0, Peer, serving, visible

GROUP = f"{GROUP_PREFIX}app"


async def find(peer: Peer, *sought: tuple[int, str], group: str = GROUP) -> list[FoundAttemptRow]:
    rows = [SoughtAttemptRow(*one) for one in sought]
    header = FindAttemptsHeader(producer_group=group)
    answer = await ask(peer, NativeCode.FIND_ATTEMPTS, header, rows)
    return list(answer.rows)


async def standing(peer: Peer, group: str = GROUP) -> tuple[bool, str]:
    header = FindAttemptsHeader(producer_group=group)
    told = (await ask(peer, NativeCode.FIND_ATTEMPTS, header)).header
    return told.is_known, told.homes


async def attempt(peer: Peer, name: str, count: int = 1, number: int = 0, **fields: str) -> int:
    rows = [sent(b"%d" % one) for one in range(count)]
    values = {"producer_group": GROUP, **fields}
    held = await hold(peer, name, *rows, number=number, is_bulk=True, **values)
    half_offset: int = held.header.half_offset
    return half_offset


async def test_each_is_told_in_the_order_of_the_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        first = await attempt(peer, "first", 3)
        second = await attempt(peer, "second")
        await attempt(peer, "first", 2, number=1)
        third = await attempt(peer, "third")
        await decide(peer, second, "commit")
        await decide(peer, third, "rollback")
        assert await find(
            peer, (third, "third"), (first, "first"), (second, "second"), (99, "first")
        ) == [
            FoundAttemptRow(third, "rolled_back", None, None),
            FoundAttemptRow(first, "prepared", 1, 5),
            FoundAttemptRow(second, "committed", None, None),
            FoundAttemptRow(99, None, None, None),
        ]


async def test_one_that_is_not_what_was_asked_for_is_not_known(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        first = await attempt(peer, "first", 2)
        later = await attempt(peer, "first", 2, number=1)
        other = await attempt(peer, "other", producer_group="pay")
        asked = ((first, "second"), (first + 1, "first"), (later, "first"), (other, "other"))
        assert [row.state for row in await find(peer, *asked)] == [None] * 4


async def test_a_group_is_known_by_what_it_held_and_an_app_by_what_it_decided(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await standing(peer) == (False, "")
        # Parts of the same app id whose home is another broker.
        for home in ("b", "a"):
            await attempt(peer, f"part of {home}", producer_group=f"{GROUP}@{home}")
        await attempt(peer, "another app's", producer_group=f"{GROUP}2@c")
        assert await standing(peer) == (False, "a,b")
        await decide(peer, await attempt(peer, "t"), "rollback")
        assert await standing(peer) == (True, "a,b")
        header = DecideBatchHeader(app_id="empty", query_id="q", batch_number=0, by="sink")
        await ask(peer, NativeCode.DECIDE_BATCH, header, list[AttemptRow]())
        assert await standing(peer, f"{GROUP_PREFIX}empty") == (True, "")


async def test_the_topic_in_which_attempts_are_opened_is_made_when_it_is_needed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, topics={"auto_create": False, "enforce_type": True}) as server:
        peer = await Peer.to(server.broker_address)
        opening = sent(b"", OPENING_TOPIC, queue_id=0)
        first = await hold(peer, "t", opening, producer_group=GROUP, is_bulk=True)
        again = await hold(peer, "t", opening, producer_group=GROUP, is_bulk=True)
        assert again.header.is_repeated
        await decide(peer, first.header.half_offset)
        assert len(visible(server, OPENING_TOPIC, 0)) == 1


@pytest.mark.parametrize("group", ["", "pay", "%SINK%"])
async def test_any_group_may_be_asked_about(tmp_path: Path, group: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await standing(peer, group) == (False, "")


async def test_an_expired_query_is_told_and_its_attempts_are_still_found(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        half_offset = await attempt(peer, "first")
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=4, by="spark")
        row = AttemptRow(transaction_id="first", last_number=0, messages=1)
        await ask(peer, NativeCode.DECIDE_BATCH, header, [row])
        clock.advance(ms=31 * DAY_MS)
        await server.broker.expiring.run()
        assert server.broker.expiring.counts["origins"] == 1
        assert await find(peer, (half_offset, "first")) == [
            FoundAttemptRow(half_offset, "committed", None, None)
        ]

        async def judged(group: str, number: int) -> str:
            asked = FindAttemptsHeader(producer_group=group, query_id="q", batch_number=number)
            told: str = (await ask(peer, NativeCode.FIND_ATTEMPTS, asked)).header.judged
            return told

        assert [await judged(GROUP, number) for number in (4, 5)] == ["expired", "new"]
        # The app is still known by the highest number of its expired queries.
        assert (await standing(peer))[0]
