"""Over a real socket: requests of stock tools, and their answers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.admin_headers import (
    ConsumeStatsHeader,
    CreateTopicHeader,
    DeleteGroupHeader,
    DeleteRouteHeader,
    ProducerGroupHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    TopicHeader,
    ViewMessageHeader,
)
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import OUR_VERSION, RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    ConsumerGroupHeader,
)
from tests.unit.broker.test_delivering import COMMITS, PULL, SUBSCRIBES, bodies, pulling, send, shop
from tests.unit.broker.wire import (
    SEND,
    T0,
    Peer,
    clock_of,
    facts,
    half,
    serving,
)


async def test_messages_are_found_by_key_and_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", KEYS="k1 k2")
        header = QueryMessageHeader(
            topic="orders", key="k2", messages_max=9, begin_at_ms=0, end_at_ms=2 * T0
        )
        assert bodies(await peer.ask(RequestCode.QUERY_MESSAGE, header)) == ["a"]
        other = msgspec.structs.replace(header, key="k3")
        answer = await peer.ask(RequestCode.QUERY_MESSAGE, other)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        held = await peer.ask(SEND, half("t"), b"half")
        view = RequestCode.VIEW_MESSAGE_BY_ID
        log_offset = int(facts(held)["msgId"][16:], 16)
        found = decode_many((await peer.ask(view, ViewMessageHeader(log_offset=log_offset))).body)
        assert (found[0].topic, found[0].body) == ("RMQ_SYS_TRANS_HALF_TOPIC", b"half")
        nothing = await peer.ask(view, ViewMessageHeader(log_offset=1))
        assert nothing.code == ResponseCode.SYSTEM_ERROR


async def test_topics_are_made_changed_shown_and_removed(tmp_path: Path) -> None:
    topic = TopicHeader(topic="orders")
    header = CreateTopicHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_count=2,
        write_queue_count=2,
        permissions=6,
        filter_type="SINGLE_TAG",
        attributes="+message.type=TRANSACTION,+a=b",
    )
    create = RequestCode.UPDATE_AND_CREATE_TOPIC
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(create, header)).code == ResponseCode.SUCCESS
        changed = msgspec.structs.replace(header, attributes="-a", read_queue_count=3)
        await peer.ask(create, changed)
        config = msgspec.json.decode((await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic)).body)
        assert (config["readQueueNums"], config["attributes"]) == (
            3,
            {"message.type": "TRANSACTION"},
        )
        odd = msgspec.structs.replace(header, attributes="+message.type=ODD")
        assert (await peer.ask(create, odd)).code == ResponseCode.SYSTEM_ERROR
        everything = await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        assert "orders" in msgspec.json.decode(everything.body)["topicConfigTable"]
        await send(peer, "a")
        stats = (await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, topic)).body
        assert stats.count(b'"queueId"') == 3
        assert b'"maxOffset":1' in stats
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic)
        route = DeleteRouteHeader(topic="orders")
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, route)).code == 0
        gone = await peer.ask(RequestCode.GET_TOPIC_CONFIG, topic)
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST


async def test_groups_are_shown_with_their_members_and_progress(tmp_path: Path) -> None:
    group = ConsumerGroupHeader(consumer_group="shop")
    connections = RequestCode.GET_CONSUMER_CONNECTION_LIST
    async with serving(tmp_path) as server:
        peer = await shop(server)
        await send(peer, "a", "b")
        await peer.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | COMMITS, commit_offset=1))
        progress = await peer.ask(
            RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(consumer_group="shop")
        )
        assert b'"brokerOffset":2,"consumerOffset":1' in progress.body
        # Without the other queues, tools would not count their messages as lag.
        assert progress.body.count(b'"queueId"') == 4
        other = ConsumeStatsHeader(consumer_group="shop", topic="other")
        nothing = await peer.ask(RequestCode.GET_CONSUME_STATS, other)
        assert b'"queueId"' not in nothing.body
        readers = await peer.ask(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic="orders")
        )
        assert msgspec.json.decode(readers.body)["groupList"] == ["shop"]
        online = msgspec.json.decode((await peer.ask(connections, group)).body)
        (member,) = online["connectionSet"]
        assert (member["clientId"], member["language"]) == ("c1", "PYTHON")
        assert member["version"] == OUR_VERSION
        assert online["subscriptionTable"]["orders"]["subString"] == "paid"
        producers = RequestCode.GET_PRODUCER_CONNECTION_LIST
        found = await peer.ask(producers, ProducerGroupHeader(producer_group="pay"))
        (sender,) = msgspec.json.decode(found.body)["connectionSet"]
        assert (sender["language"], sender["version"]) == ("PYTHON", OUR_VERSION)
        nobody = await peer.ask(producers, ProducerGroupHeader(producer_group="x"))
        assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE
        stranger = ConsumerGroupHeader(consumer_group="x")
        assert (await peer.ask(connections, stranger)).code == ResponseCode.CONSUMER_NOT_ONLINE
        body = encode_body(GroupConfig(name="shop", retries_max=3))
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        assert server.broker.catalog.groups["shop"].group.retry_max == 3
        removed = DeleteGroupHeader(consumer_group="shop")
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, removed)
        assert "shop" not in server.broker.catalog.groups
        assert not server.broker.meta.offsets


async def test_a_group_is_sent_back_whether_it_is_online_or_not(tmp_path: Path) -> None:
    reset = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    to_start = ResetOffsetHeader(consumer_group="shop", topic="orders", stored_at_ms=0)
    key = ("shop", "orders", 1)
    async with serving(tmp_path) as server:
        peer = await shop(server)
        await send(peer, "a")
        clock_of(server).advance(ms=1_000)
        await send(peer, "b")
        for header, offset in (
            (to_start, 0),
            (msgspec.structs.replace(to_start, stored_at_ms=T0 + 1_000), 1),
            (msgspec.structs.replace(to_start, stored_at_ms=-1), 2),
            (msgspec.structs.replace(to_start, offset=1, queue_id=1), 1),
            (msgspec.structs.replace(to_start, offset=99), 2),
        ):
            answer = await peer.ask(reset, header)
            assert b'"offsetTable"' in answer.body
            assert server.broker.meta.offsets[key] == offset
            told = await peer.until(
                lambda frame: frame.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            )
            assert told.body == answer.body
        offline = msgspec.structs.replace(to_start, consumer_group="asleep")
        await peer.ask(reset, offline)
        assert server.broker.meta.offsets["asleep", "orders", 3] == 0


async def test_the_broker_tells_what_tools_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
        answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = msgspec.json.decode(answer.body)["table"]
        assert table["brokerVersionDesc"].startswith("EscrowMQ")
        assert int(table["commitLogMaxOffset"]) == server.broker.store.log.end
        assert table["earliestMessageTimeStamp"] == str(T0)
