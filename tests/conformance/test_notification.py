"""NOTIFICATION: whether a pop would find a message, at once or when the first one comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import CheckClientRequest, SubscriptionBody
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.conformance.pop_talk import INVISIBLE_MS, POP, ack, pop, popping, send
from tests.conformance.talk import beat, clock_of, pulling
from tests.unit.broker.wire import Peer, eventually, facts, serving

PULL = RequestCode.PULL_MESSAGE


def question(**fields: Any) -> pop_headers.NotificationHeader:  # noqa: ANN401 - fields of the header
    values = {"consumer_group": "shop", "topic": "orders", "queue_id": -1, "wait_ms": 0, **fields}
    return pop_headers.NotificationHeader(**values)


async def is_there(peer: Peer, **fields: Any) -> bool:  # noqa: ANN401 - fields of the header
    answer = await peer.ask(RequestCode.NOTIFICATION, question(**fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return facts(answer)["hasMsg"] == "true"


async def test_a_question_tells_of_messages_and_delivers_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        assert await is_there(peer)
        assert await is_there(peer, queue_id=1)
        assert not await is_there(peer, queue_id=0)
        (one,) = await pop(peer)
        assert not await is_there(peer)
        clock_of(server).advance(ms=INVISIBLE_MS)
        assert await is_there(peer)
        (one,) = await pop(peer)
        assert one.message.reconsume_times == 1
        await ack(peer, one)
        assert not await is_there(peer)


async def test_a_question_waits_for_the_first_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, sender = [await Peer.to(server.broker_address) for _ in range(2)]
        await beat(peer)
        await send(sender, "a")
        (one,) = await pop(peer)
        await ack(peer, one)
        asked = asyncio.ensure_future(is_there(peer, wait_ms=60_000))
        await eventually(lambda: server.broker.popping.polls.waiting)
        await send(sender, "b")
        assert await asked
        # It is still there for a pop.
        assert [one.body for one in await pop(peer)] == ["b"]


async def test_in_order_a_message_in_flight_holds_the_next_one_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b")
        (one,) = await pop(peer, is_ordered=True, messages_max=1, attempt_id="first")
        assert not await is_there(peer, is_ordered=True)
        assert await is_there(peer, is_ordered=True, attempt_id="first")
        assert await is_there(peer)
        await ack(peer, one)
        assert await is_there(peer, is_ordered=True)


async def test_a_question_changes_nothing_about_how_a_group_reads(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        end = server.broker.store.log.end
        assert await is_there(peer)
        assert server.broker.store.log.end == end
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.SUCCESS


async def test_bad_questions_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        for fields, code in (
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ):
            answer = await peer.ask(RequestCode.NOTIFICATION, question(**fields))
            assert answer.code == code, fields


# Filters in SQL: the broker is like Apache's with ``enablePropertyFilter`` off, its default.


@pytest.mark.parametrize("kind", ["SQL92", "sql92", "JSON"])
async def test_a_filter_in_another_language_is_refused_everywhere(
    tmp_path: Path, kind: str
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        said = SubscriptionBody(topic="orders", expression="a > 1", expression_type=kind)
        config = CheckClientRequest(client_id="c", group="shop", subscription=said)
        answers = [
            await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(config)),
            await peer.ask(PULL, pulling(subscription="a > 1", expression_type=kind)),
            await peer.ask(POP, popping(expression="a > 1", expression_type=kind)),
        ]
        for answer in answers:
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark.startswith("filter_unsupported")
