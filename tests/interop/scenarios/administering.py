"""More operator work with mqadmin: look at queues, send by hand, set permissions, set up groups."""

from __future__ import annotations

import re

from tests.interop.errors import PeerRefused
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import CLUSTER, Broker, eventually, fresh, scenario
from tests.interop.values import Message

BROKER = "broker-a"


@scenario(Ability.SEND, Ability.MQADMIN)
def mqadmin_reads_queues(broker: Broker, peer: Peer) -> None:
    topic, key = fresh("read"), fresh("key")
    broker.create_topic(topic, queues=1)
    peer.start_producer(broker.name_server, fresh("producers")).send(
        Message(topic=topic, keys=key, body=b"found me")
    )
    names = ("-n", broker.name_server, "-t", topic)
    by_offset = peer.mqadmin("queryMsgByOffset", *names, "-b", BROKER, "-i", "0", "-o", "0")
    assert re.search(rf"Keys: +\[{key}\]", by_offset), by_offset
    for command in (("printMsg", *names, "-d", "true"), ("consumeMessage", *names)):
        printed = peer.mqadmin(*command)
        assert key in printed, printed
        assert "found me" in printed, printed


@scenario(Ability.PUSH, Ability.MQADMIN)
def mqadmin_sends_a_message(broker: Broker, peer: Peer) -> None:
    topic = fresh("by-hand")
    broker.create_topic(topic)
    said = peer.mqadmin(
        "sendMessage", "-n", broker.name_server, "-t", topic, "-p", "hello", "-k", "k", "-c", "t"
    )
    assert "SEND_OK" in said, said
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert (found.body, found.keys, found.tags) == (b"hello", "k", "t")


@scenario(Ability.SEND, Ability.MQADMIN)
def mqadmin_forbids_to_write(broker: Broker, peer: Peer) -> None:
    topic = fresh("closed")
    broker.create_topic(topic)

    def permit(bits: int) -> None:
        said = peer.mqadmin(
            "updateTopicPerm", "-n", broker.name_server, "-c", CLUSTER, "-t", topic, "-p", str(bits)
        )
        assert f"to {bits} in" in said, said

    def is_taken() -> bool:
        # Use a new producer: Apache's broker leaves this to clients, and old ones know the old
        # route.
        producer = peer.start_producer(broker.name_server, fresh("producers"))
        try:
            producer.send(Message(topic=topic))
        except PeerRefused:
            return False
        return True

    assert is_taken()
    permit(4)
    eventually(lambda: not is_taken(), "refusal by a topic that is closed")
    permit(6)
    eventually(is_taken, "message in a topic that is open again")


@scenario(Ability.MQADMIN)
def mqadmin_makes_and_deletes_a_group(broker: Broker, peer: Peer) -> None:
    group = fresh("made")
    names = ("-n", broker.name_server, "-g", group)
    made = peer.mqadmin("updateSubGroup", *names, "-c", CLUSTER, "-r", "3")
    assert "success" in made, made
    shown = peer.mqadmin("getConsumerConfig", *names)
    assert re.search(r"retryMaxTimes +=  3\b", shown), shown
    deleted = peer.mqadmin("deleteSubGroup", *names, "-c", CLUSTER)
    assert "success" in deleted, deleted


@scenario(Ability.SEND, Ability.PUSH, Ability.MQADMIN)
def mqadmin_looks_into_brokers_and_consumers(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("look"), fresh("consumers")
    broker.create_topic(topic, queues=1)
    consumer = peer.start_push_consumer(broker.name_server, group, topic)
    peer.start_producer(broker.name_server, fresh("producers")).send(Message(topic=topic))
    consumer.wait_for(1)
    assert CLUSTER in peer.mqadmin("topicClusterList", "-n", broker.name_server, "-t", topic)
    status = peer.mqadmin("brokerStatus", "-n", broker.name_server, "-b", broker.broker_address)
    assert re.search(r"^brokerVersionDesc +: \S", status, re.MULTILINE), status
    settings = peer.mqadmin(
        "getBrokerConfig", "-n", broker.name_server, "-b", broker.broker_address
    )
    assert re.search(rf"^brokerName +=  {BROKER}$", settings, re.MULTILINE), settings
    # The broker asks the consumer itself.
    running = peer.mqadmin(
        "consumerStatus", "-n", broker.name_server, "-g", group, "-i", consumer.client_id
    )
    assert "#Consumer Properties#" in running, running
    assert topic in running, running
