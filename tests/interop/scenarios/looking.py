"""Lookups through the client's own calls and through mqadmin."""

from __future__ import annotations

import re

from tests.interop.clients import PushConsumer
from tests.interop.errors import PeerRefused
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import CLUSTER, Broker, eventually, fresh, same, scenario
from tests.interop.values import Answer, Message


@scenario(Ability.SEND, Ability.LOOK_UP)
def a_message_is_found_by_its_key_and_both_its_ids(broker: Broker, peer: Peer) -> None:
    topic = fresh("find")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    sent = producer.send(Message(topic=topic, keys="red blue", body=b"here"))
    producer.send(Message(topic=topic, keys="blue"))
    assert sent.message_id is not None
    assert sent.offset_message_id is not None

    def keys(key: str) -> list[str | None]:
        try:
            return [one.keys for one in peer.query_by_key(broker.name_server, topic, key)]
        except PeerRefused:  # This client raises an error if nothing is found.
            return []

    eventually(lambda: len(keys("blue")) == 2, "both messages by key")
    same(keys("red"), ["red blue"])
    by_offset = peer.view(broker.name_server, topic, sent.offset_message_id)
    by_unique_key = peer.view(broker.name_server, topic, sent.message_id)
    assert by_offset.body == by_unique_key.body == b"here"
    assert by_offset.queue_offset == by_unique_key.queue_offset == sent.queue_offset


@scenario(Ability.TRANSACTION, Ability.LOOK_UP)
def only_a_committed_transaction_is_found_by_key(broker: Broker, peer: Peer) -> None:
    topic = fresh("found")
    broker.create_topic(topic)
    producer = peer.start_transaction_producer(broker.name_server, fresh("producers"))
    producer.send_in_transaction(Message(topic=topic, keys="gone"), local=Answer.ROLLBACK)
    sent = producer.send_in_transaction(Message(topic=topic, keys="kept"), local=Answer.COMMIT)

    def count(key: str) -> int:
        try:
            return len(peer.query_by_key(broker.name_server, topic, key))
        except PeerRefused:
            return 0

    eventually(lambda: count("kept") == 1, "the committed message by key")
    assert count("gone") == 0
    assert sent.message_id is not None
    assert peer.view(broker.name_server, topic, sent.message_id).topic == topic


@scenario(Ability.MQADMIN)
def mqadmin_lists_topics_and_routes(broker: Broker, peer: Peer) -> None:
    topic = fresh("listed")
    broker.create_topic(topic, queues=3)
    assert topic in peer.mqadmin("topicList", "-n", broker.name_server).split()
    route = peer.mqadmin("topicRoute", "-n", broker.name_server, "-t", topic)
    assert re.search(r'"readQueueNums":\s*3', route), route
    assert re.search(r'"perm":\s*6', route), route


@scenario(Ability.MQADMIN)
def mqadmin_lists_the_cluster(broker: Broker, peer: Peer) -> None:
    cluster = peer.mqadmin("clusterList", "-n", broker.name_server)
    assert re.search(r"^\S+ +\S+ +0 +\S+:\d+ ", cluster, re.MULTILINE), cluster


@scenario(Ability.MQADMIN)
def mqadmin_makes_and_deletes_a_topic(broker: Broker, peer: Peer) -> None:
    topic = fresh("made")
    made = peer.mqadmin(
        "updateTopic", "-n", broker.name_server, "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2"
    )
    assert "success" in made
    eventually(
        lambda: topic in peer.mqadmin("topicList", "-n", broker.name_server).split(), "the topic"
    )
    peer.mqadmin("deleteTopic", "-n", broker.name_server, "-c", CLUSTER, "-t", topic)
    eventually(
        lambda: topic not in peer.mqadmin("topicList", "-n", broker.name_server).split(),
        "the topic to go",
    )


@scenario(Ability.SEND, Ability.PUSH, Ability.MQADMIN)
def mqadmin_shows_how_far_topics_and_groups_are(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("status"), fresh("consumers")
    broker.create_topic(topic, queues=2)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for queue in (0, 1, 1):
        producer.send_to_queue(Message(topic=topic), queue)
    status = peer.mqadmin("topicStatus", "-n", broker.name_server, "-t", topic)
    ends = re.findall(r"^\S+ +(\d+) +0 +(\d+) +20", status, re.MULTILINE)
    assert sorted(ends) == [("0", "1"), ("1", "2")], status
    consumer = peer.start_push_consumer(broker.name_server, group, topic)
    consumer.wait_for(3)

    def progress() -> str:
        try:
            return peer.mqadmin("consumerProgress", "-n", broker.name_server, "-g", group)
        except PeerRefused:  # Version 4.9 raises an error while the group has no offset.
            return ""

    # A client commits its offsets every 5 seconds. The columns: broker offset, consumer offset, and
    # difference 0.
    row = re.compile(rf"^{topic} .* 1 +2 +2 +0 ", re.MULTILINE)
    eventually(lambda: bool(row.search(progress())), "all consumed")
    assert_connected(broker, peer, group, consumer)


def assert_connected(broker: Broker, peer: Peer, group: str, consumer: PushConsumer) -> None:
    text = peer.mqadmin("consumerConnection", "-n", broker.name_server, "-g", group)
    assert consumer.client_id in text
    assert "ConsumeType: CONSUME_PASSIVELY" in text
    assert "MessageModel: CLUSTERING" in text
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in text


@scenario(Ability.TRANSACTION, Ability.MQADMIN)
def mqadmin_shows_who_produces(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("who"), fresh("producers")
    broker.create_topic(topic)
    producer = peer.start_transaction_producer(broker.name_server, group)
    producer.send_in_transaction(Message(topic=topic, keys="k"), local=Answer.COMMIT)

    def connected() -> str:
        try:
            return peer.mqadmin(
                "producerConnection", "-n", broker.name_server, "-g", group, "-t", topic
            )
        except PeerRefused:
            return ""

    # A 4.9 producer knows no broker when it starts, so its first heartbeat comes later.
    eventually(lambda: producer.client_id in connected(), "the producer")


@scenario(Ability.SEND, Ability.MQADMIN)
def mqadmin_finds_messages_by_id_and_key(broker: Broker, peer: Peer) -> None:
    topic, key = fresh("seek"), fresh("key")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    sent = producer.send(Message(topic=topic, keys=key, tags="t", body=b"found me"))
    assert sent.message_id is not None
    assert sent.offset_message_id is not None
    message_id = sent.message_id

    def by_key() -> str:
        return peer.mqadmin("queryMsgByKey", "-n", broker.name_server, "-t", topic, "-k", key)

    eventually(lambda: message_id in by_key(), "the message by key")
    by_id = peer.mqadmin_by_id(broker.name_server, topic, sent.offset_message_id)
    assert re.search(rf"Topic: +{topic}", by_id), by_id
    assert re.search(r"Tags: +\[t\]", by_id), by_id
    by_unique_key = peer.mqadmin(
        "queryMsgByUniqueKey", "-n", broker.name_server, "-t", topic, "-i", sent.message_id
    )
    assert re.search(rf"Topic: +{topic}", by_unique_key), by_unique_key


@scenario(Ability.SEND, Ability.PUSH, Ability.MQADMIN)
def mqadmin_sets_a_group_back_in_time(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("back"), fresh("consumers")
    broker.create_topic(topic, queues=1)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for number in range(3):
        producer.send(Message(topic=topic, keys=f"m-{number}"))
    consumer = peer.start_push_consumer(broker.name_server, group, topic)
    consumer.wait_for(3)
    peer.mqadmin("resetOffsetByTime", "-n", broker.name_server, "-g", group, "-t", topic, "-s", "0")
    consumer.wait_for(6)
