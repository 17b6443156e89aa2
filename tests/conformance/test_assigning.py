"""Queues that the broker shares out, and the mode in which a group reads a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.broker.rocketmq.assigning import shared_out
from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.conformance.talk import beat
from tests.unit.broker.wire import Peer, make_topic, serving


async def set_mode(peer: Peer, mode: str, **fields: Any) -> int:  # noqa: ANN401 - fields of the body
    values: dict[str, Any] = {"topic": "orders", "consumer_group": "shop", "mode": mode, **fields}
    body = encode_body(pop_headers.RequestModeBody(**values))
    return (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)).code


async def assigned(peer: Peer, client_id: str, **fields: Any) -> list[tuple[str, int]]:  # noqa: ANN401
    """Return mode and queue id of each assignment."""
    values = {"topic": "orders", "consumer_group": "shop", "client_id": client_id, **fields}
    body = encode_body(pop_headers.AssignmentRequest(**values))
    answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    told = msgspec.json.decode(answer.body)["messageQueueAssignments"]
    assert {one["messageQueue"]["topic"] for one in told} <= {values["topic"]}
    return [(one["mode"], one["messageQueue"]["queueId"]) for one in told]


async def test_members_that_pull_share_the_queues_and_members_that_pop_read_all(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await make_topic(server, "orders", 4)
        await beat(peer, "shop", "c1")
        await beat(other, "shop", "c2")
        assert await assigned(peer, "c1") == [("PULL", 0), ("PULL", 1)]
        assert await assigned(peer, "c2") == [("PULL", 2), ("PULL", 3)]
        assert await assigned(peer, "stranger") == []
        broadcast = await assigned(peer, "c1", message_model="BROADCASTING")
        assert [queue_id for _, queue_id in broadcast] == [0, 1, 2, 3]
        assert await set_mode(peer, "POP") == ResponseCode.SUCCESS
        assert await assigned(peer, "c1") == [("POP", -1)]
        assert await assigned(peer, "c2") == [("POP", -1)]
    async with serving(tmp_path) as server:
        # The mode is durable.
        peer = await Peer.to(server.broker_address)
        await beat(peer, "shop", "c1")
        assert await assigned(peer, "c1") == [("POP", -1)]
        assert await set_mode(peer, "PULL") == ResponseCode.SUCCESS
        assert await assigned(peer, "c1") == [("PULL", at) for at in range(4)]


async def test_a_member_may_pop_the_queues_of_the_members_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(server, "orders", 4)
        peers = [await Peer.to(server.broker_address) for _ in range(4)]
        for number, peer in enumerate(peers):
            await beat(peer, "shop", f"c{number}")
        assert await set_mode(peers[0], "POP", share_queue_count=1) == ResponseCode.SUCCESS
        assert await assigned(peers[0], "c0") == [("POP", 0), ("POP", 1)]
        assert await assigned(peers[0], "c3") == [("POP", 0), ("POP", 3)]
        await make_topic(server, "orders", 2)
        assert await assigned(peers[0], "c3") == [("POP", 1)]


async def test_a_mode_is_set_for_an_existing_topic_and_group_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await make_topic(server, "orders", 4)
        await beat(peer)
        for fields, code in (
            ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"topic": "%RETRY%shop"}, ResponseCode.NO_PERMISSION),
            ({"consumer_group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ):
            assert await set_mode(peer, "POP", **fields) == code, fields
        # A group's retries are always pulled.
        await make_topic(server, "%RETRY%shop", 1)
        assert await set_mode(peer, "POP") == ResponseCode.SUCCESS
        assert await assigned(peer, "c1", topic="%RETRY%shop") == [("PULL", 0)]


@pytest.mark.parametrize("queues", [0, 1, 4, 5, 9])
@pytest.mark.parametrize("members", [1, 2, 3, 7])
def test_each_queue_has_one_reader(queues: int, members: int) -> None:
    shares = [shared_out(queues, at, members) for at in range(members)]
    assert [one for share in shares for one in share] == list(range(queues))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


async def test_requests_that_no_consumer_sends_are_refused_by_the_code_that_callers_understand(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        # PEEK_MESSAGE, of RocketMQ's proxy.
        answer = await peer.ask(200_052)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
