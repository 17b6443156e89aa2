"""Requests of RocketMQ's tools, beyond topics and messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from escrowmq.broker.rocketmq import relaying
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.admin_headers import (
    ClusterHeader,
    ConsumeDirectlyHeader,
    GroupHeader,
    GroupTopicHeader,
    KeyValueHeader,
    RouteHeader,
    RunningInfoHeader,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame, encode_response
from escrowmq.protocol.remoting.headers import Header
from tests.conformance.talk import COMMITS, SUBSCRIBES, beat, clock_of, pulling, put_group
from tests.unit.broker.wire import SEND, T0, Peer, eventually, facts, half, sending, serving

if TYPE_CHECKING:
    import pytest


async def told(peer: Peer, code: RequestCode, header: Header | None = None) -> Any:  # noqa: ANN401
    answer = await peer.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return msgspec.json.decode(answer.body)


async def test_groups_are_shown_as_they_were_set_up(tmp_path: Path) -> None:
    wanted = {"retryMaxTimes": 3, "retryQueueNums": 2, "consumeEnable": False}
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await put_group(peer, retries_max=3, retry_queue_count=2, may_consume=False)
        one = await told(
            peer, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(consumer_group="shop")
        )
        assert wanted.items() <= one.items()
        everything = await told(peer, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        assert everything["subscriptionGroupTable"]["shop"] == one
        unknown = await peer.ask(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(consumer_group="nobody")
        )
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_group_is_shown_with_what_it_reads_and_how_far(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        for _ in range(3):
            await peer.ask(SEND, sending(), b"x")
            clock_of(server).advance(ms=100)
        commits = pulling(2, sys_flag=SUBSCRIBES | COMMITS, commit_offset=2)
        await peer.ask(RequestCode.PULL_MESSAGE, commits)
        both = GroupTopicHeader(consumer_group="shop", topic="orders")
        spans = (await told(peer, RequestCode.QUERY_CONSUME_TIME_SPAN, both))["consumeTimeSpanSet"]
        assert spans[1] == {
            "messageQueue": {"brokerName": "broker-a", "queueId": 1, "topic": "orders"},
            "minTimeStamp": T0,
            "maxTimeStamp": T0 + 200,
            "consumeTimeStamp": T0 + 100,
            "delayTime": 100,
        }
        assert spans[0]["minTimeStamp"] == -1
        topics = await told(
            peer, RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader(consumer_group="shop")
        )
        assert topics["topicList"] == ["orders"]
        online = await told(peer, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, both)
        assert online["subscriptionData"]["subString"] == "*"
        offline = GroupTopicHeader(consumer_group="nobody", topic="orders")
        nothing = await told(peer, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, offline)
        assert nothing["subscriptionData"] is None


async def test_topics_of_the_system_and_of_users_are_listed_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.name_address)
        await peer.ask(SEND, sending(), b"x")
        code = RequestCode.GET_TOPICS_BY_CLUSTER
        ours = await told(peer, code, ClusterHeader(cluster="DefaultCluster"))
        assert "orders" in ours["topicList"]
        assert (await told(peer, code, ClusterHeader(cluster="x")))["topicList"] == []
        for code in (
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        ):
            systems = (await told(peer, code))["topicList"]
            assert "RMQ_SYS_TRANS_HALF_TOPIC" in systems
            assert "orders" not in systems


async def test_settings_are_shown_under_rocketmqs_names(tmp_path: Path) -> None:
    async with serving(tmp_path, policy={"checks_max": 7}) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        lines = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
        assert (lines["transactionCheckMax"], lines["autoCreateTopicEnable"]) == ("7", "true")
        assert f"{lines['brokerIP1']}:{lines['listenPort']}" == server.broker_address
        assert msgspec.json.decode(facts(answer)["version"])["counter"] == 0


async def test_the_order_of_a_topic_is_kept_and_told_with_its_route(tmp_path: Path) -> None:
    names = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.name_address)
        await peer.ask(SEND, sending(), b"x")

        async def route() -> Any:  # noqa: ANN401
            return await told(peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic="orders"))

        assert "orderTopicConf" not in await route()
        await peer.ask(RequestCode.PUT_KV_CONFIG, KeyValueHeader(**names, value="broker-a:4"))
        kept = await peer.ask(RequestCode.GET_KV_CONFIG, KeyValueHeader(**names))
        assert facts(kept)["value"] == "broker-a:4"
        assert (await route())["orderTopicConf"] == "broker-a:4"
        await peer.ask(RequestCode.DELETE_KV_CONFIG, KeyValueHeader(**names))
        gone = await peer.ask(RequestCode.GET_KV_CONFIG, KeyValueHeader(**names))
        assert gone.code == ResponseCode.QUERY_NOT_FOUND


# Requests that the broker passes on to a consumer.

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
ABOUT_C1 = RunningInfoHeader(consumer_group="shop", client_id="c1")


async def passed_on(consumer: Peer, code: RequestCode) -> RemotingFrame:
    return await consumer.until(lambda frame: not frame.is_response and frame.code == code)


async def test_a_consumers_own_words_reach_the_tool_that_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        tool, consumer, stranger = [await Peer.to(server.broker_address) for _ in range(3)]
        await beat(consumer)
        asked = asyncio.ensure_future(tool.ask(INFO, ABOUT_C1))
        question = await passed_on(consumer, INFO)
        assert facts(question)["jstackEnable"] == "false"
        # Only the consumer that was asked may answer.
        stranger.write(encode_response(question, 0, body=b"a lie"))
        await beat(stranger, client_id="c2")
        consumer.write(encode_response(question, 0, body=b"{}"))
        assert (await asked).body == b"{}"


async def test_a_consumer_is_handed_one_message_out_of_its_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        tool, consumer = [await Peer.to(server.broker_address) for _ in range(2)]
        await beat(consumer)
        sent = facts(await tool.ask(SEND, sending(), b"x"))
        wanted = ConsumeDirectlyHeader(
            consumer_group="shop", client_id="c1", offset_message_id=sent["msgId"]
        )
        asked = asyncio.ensure_future(tool.ask(DIRECTLY, wanted))
        question = await passed_on(consumer, DIRECTLY)
        assert [one.body for one in decode_many(question.body)] == [b"x"]
        consumer.write(encode_response(question, 0, body=b"{}"))
        assert (await asked).code == ResponseCode.SUCCESS
        held = facts(await tool.ask(SEND, half("t"), b"half"))
        hidden = msgspec.structs.replace(wanted, offset_message_id=held["msgId"])
        assert (await tool.ask(DIRECTLY, hidden)).code == ResponseCode.SYSTEM_ERROR


async def test_a_consumer_that_is_gone_or_silent_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        tool, consumer = [await Peer.to(server.broker_address) for _ in range(2)]
        assert (await tool.ask(INFO, ABOUT_C1)).code == ResponseCode.SYSTEM_ERROR
        await beat(consumer)
        asked = asyncio.ensure_future(tool.ask(INFO, ABOUT_C1))
        await passed_on(consumer, INFO)
        consumer.close()
        assert (await asked).code == ResponseCode.CONSUME_MSG_TIMEOUT
        await eventually(lambda: server.broker.clients.consumers("shop") is None)
        await beat(tool)
        monkeypatch.setattr(relaying, "ASKED_MAX", 0)
        assert (await tool.ask(INFO, ABOUT_C1)).code == ResponseCode.SYSTEM_BUSY
