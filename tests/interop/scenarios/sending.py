"""The ways to send without a transaction, and when the messages arrive."""

from __future__ import annotations

import time

from tests.interop.peer import Ability, Peer
from tests.interop.scenario import Broker, fresh, same, scenario
from tests.interop.values import Message, Received

#: Clients compress from 4 KiB, and the oldest refuses to send more than 128 KiB.
WORDS = 10_000
DELAY_MS = 1_000
#: The born time is from the client's clock, the stored time from the broker's timer, which counts
#: in tenths of a second.
SLACK_MS = 150


@scenario(Ability.SEND, Ability.ASYNC, Ability.PUSH)
def every_way_to_send_arrives(broker: Broker, peer: Peer) -> None:
    topic = fresh("ways")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    assert producer.send(Message(topic=topic, keys="sync")).status == "SEND_OK"
    assert producer.send_async(Message(topic=topic, keys="async")).status == "SEND_OK"
    producer.send_oneway(Message(topic=topic, keys="oneway"))
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    found = consumer.wait_for(3)
    same([message.keys for message in found], ["sync", "async", "oneway"])


@scenario(Ability.SEND, Ability.PUSH)
def a_message_arrives_as_it_was_sent(broker: Broker, peer: Peer) -> None:
    topic = fresh("whole")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    body = "grüße ".encode() * WORDS
    sent = producer.send(
        Message(topic=topic, body=body, keys="k", tags="t", properties={"colour": "blue"})
    )
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert found.message_id == sent.message_id
    assert found.queue_offset == sent.queue_offset == 0
    assert (found.body, found.keys, found.tags) == (body, "k", "t")
    assert found.properties["colour"] == "blue"
    assert abs(found.stored_at_ms - found.born_at_ms) < 60_000


@scenario(Ability.SEND, Ability.PUSH)
def a_topic_comes_to_be_when_it_is_first_sent_to(broker: Broker, peer: Peer) -> None:
    topic = fresh("unmade")
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    assert producer.send(Message(topic=topic, keys="first")).status == "SEND_OK"
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    (found,) = consumer.wait_for(1)
    assert found.keys == "first"


@scenario(Ability.BATCH, Ability.PUSH)
def a_batch_arrives_message_by_message(broker: Broker, peer: Peer) -> None:
    topic = fresh("batch")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    keys = [f"part-{number}" for number in range(5)]
    sent = producer.send_batch([Message(topic=topic, keys=key, body=key.encode()) for key in keys])
    assert sent.status == "SEND_OK"
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    found = consumer.wait_for(5)
    same([message.keys for message in found], keys)
    assert {message.queue for message in found} == {sent.queue}
    assert sorted(message.queue_offset for message in found) == list(range(5))
    assert all(message.body.decode() == message.keys for message in found)


def in_queue_order(found: list[Received]) -> list[Received]:
    """Sort messages of one queue, which a client may hand to several threads."""
    return sorted(found, key=lambda message: message.queue_offset)


@scenario(Ability.DELAY_LEVEL, Ability.PUSH)
def a_delayed_message_arrives_after_its_delay(broker: Broker, peer: Peer) -> None:
    topic = fresh("delay")
    broker.create_topic(topic, queues=1)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    producer.send(Message(topic=topic, keys="later", delay_level=1))
    producer.send(Message(topic=topic, keys="now"))
    now, late = in_queue_order(consumer.wait_for(2))
    assert (now.keys, late.keys) == ("now", "later")
    assert late.topic == topic
    assert late.stored_at_ms - late.born_at_ms >= DELAY_MS - SLACK_MS


@scenario(Ability.DELIVER_TIME, Ability.PUSH)
def a_message_arrives_at_its_time(broker: Broker, peer: Peer) -> None:
    topic = fresh("timer")
    broker.create_topic(topic, queues=1)
    consumer = peer.start_push_consumer(broker.name_server, fresh("consumers"), topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    at_ms = int(time.time() * 1000) + 2 * DELAY_MS
    producer.send(Message(topic=topic, keys="at", deliver_at_ms=at_ms))
    producer.send(Message(topic=topic, keys="after", delay_ms=DELAY_MS))
    producer.send(Message(topic=topic, keys="now"))
    found = in_queue_order(consumer.wait_for(3))
    assert found[0].keys == "now"
    (timed,) = [message for message in found if message.keys == "at"]
    # The timer of Apache RocketMQ counts whole seconds.
    assert timed.stored_at_ms >= at_ms - 1_000
