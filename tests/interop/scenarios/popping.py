"""Pop consumers: the broker shares out messages instead of queues."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.interop import remoting
from tests.interop.clients import PushConsumer
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import Broker, eventually, fresh, same, scenario
from tests.interop.scenarios.consuming import send_until_all_have_some
from tests.interop.values import Message

#: The shortest that the client takes.
INVISIBLE_MS = 5_000
#: A refused message is popped again after 10 s.
AGAIN_TIMEOUT_S = 60


def popped_by(
    broker: Broker,
    peer: Peer,
    topic: str,
    group: str,
    **options: Any,  # noqa: ANN401 - options
) -> PushConsumer:
    """Start a push consumer that leaves its queues to the broker."""
    return peer.start_push_consumer(
        broker.name_server, group, topic, pop=True, invisible_ms=INVISIBLE_MS, **options
    )


def popping_group(broker: Broker, peer: Peer, topic: str) -> str:
    """Make a group that pops a topic."""
    group = fresh("poppers")
    remoting.create_group(broker.broker_address, group, retries_max=16)
    said = peer.mqadmin(
        *("setConsumeMode", "-b", broker.broker_address, "-t", topic, "-g", group, "-m", "POP"),
        *("-n", broker.name_server),
    )
    assert "success" in said, said
    return group


@scenario(Ability.SEND, Ability.POP, Ability.MQADMIN)
def members_that_pop_share_every_queue(broker: Broker, peer: Peer) -> None:
    topic = fresh("pop")
    broker.create_topic(topic, queues=1)
    group = popping_group(broker, peer, topic)
    consumers = [popped_by(broker, peer, topic, group) for _ in range(2)]
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    send_until_all_have_some(producer, topic, *consumers)
    keys = [f"order-{number}" for number in range(40)]
    for key in keys:
        producer.send(Message(topic=topic, keys=key))

    def found() -> list[str | None]:
        received = [one.keys for consumer in consumers for one in consumer.received()]
        return [key for key in received if key in keys]

    eventually(lambda: len(found()) >= len(keys), "all messages")
    same(found(), keys)


@scenario(Ability.SEND, Ability.POP, Ability.MQADMIN)
def a_refused_message_is_popped_again(broker: Broker, peer: Peer) -> None:
    topic = fresh("pop")
    broker.create_topic(topic)
    group = popping_group(broker, peer, topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    sent = producer.send(Message(topic=topic, keys="hard", tags="t", body=b"again"))
    producer.send(Message(topic=topic, keys="easy"))
    consumer = popped_by(broker, peer, topic, group, fail={"hard": 1})
    first, second = consumer.wait_for(
        2, lambda message: message.keys == "hard", timeout_s=AGAIN_TIMEOUT_S
    )
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert (second.topic, second.body, second.tags) == (topic, b"again", "t")
    assert second.message_id == sent.message_id
    same([message.keys for message in consumer.received()], ["hard", "hard", "easy"])


@scenario(Ability.QUEUE_SELECTOR, Ability.POP, Ability.MQADMIN)
def each_queue_is_popped_in_order(broker: Broker, peer: Peer) -> None:
    topic = fresh("pop-order")
    broker.create_topic(topic, queues=2)
    group = popping_group(broker, peer, topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for step in range(5):
        for queue in range(2):
            producer.send_to_queue(Message(topic=topic, keys=f"q{queue}-{step}"), queue)
    consumer = popped_by(broker, peer, topic, group, orderly=True, fail={"q1-2": 1})
    found = consumer.wait_for(10, accepted=True, timeout_s=AGAIN_TIMEOUT_S)
    taken: defaultdict[int, list[str | None]] = defaultdict(list)
    for message in found:
        taken[message.queue].append(message.keys)
    for queue in range(2):
        assert taken[queue] == [f"q{queue}-{step}" for step in range(5)]
    assert len(consumer.wait_for(2, lambda message: message.keys == "q1-2")) == 2


@scenario(Ability.SEND, Ability.POP, Ability.MQADMIN)
def messages_of_a_killed_member_come_to_the_others(broker: Broker, peer: Peer) -> None:
    topic = fresh("pop-kill")
    broker.create_topic(topic, queues=1)
    group = popping_group(broker, peer, topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    with peer.another() as doomed:
        # It refuses everything, so that nothing is acknowledged.
        killed = popped_by(broker, doomed, topic, group, fail={"lost": 99})
        producer.send(Message(topic=topic, keys="lost"))
        killed.wait_for(1)
    staying = popped_by(broker, peer, topic, group)
    (found,) = staying.wait_for(1, timeout_s=AGAIN_TIMEOUT_S)
    assert (found.keys, found.reconsume_times) == ("lost", 1)
