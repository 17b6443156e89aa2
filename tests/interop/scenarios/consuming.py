"""How consumers share, order, refuse and resume messages."""

from __future__ import annotations

from collections import defaultdict

from tests.interop import remoting
from tests.interop.clients import Producer, PushConsumer
from tests.interop.peer import Ability, Peer
from tests.interop.scenario import Broker, eventually, fresh, same, scenario
from tests.interop.values import Message, Model

#: The Go client looks for its retry topic only when it refreshes routes, every 30 s.
RETRY_TIMEOUT_S = 120


@scenario(Ability.SEND, Ability.PUSH)
def a_refused_message_comes_again(broker: Broker, peer: Peer) -> None:
    topic = fresh("retry")
    broker.create_topic(topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    sent = producer.send(Message(topic=topic, keys="hard", tags="t", body=b"again"))
    producer.send(Message(topic=topic, keys="easy"))
    consumer = peer.start_push_consumer(
        broker.name_server, fresh("consumers"), topic, fail={"hard": 1}
    )
    first, second = consumer.wait_for(
        2, lambda message: message.keys == "hard", timeout_s=RETRY_TIMEOUT_S
    )
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert (second.topic, second.body, second.tags) == (topic, b"again", "t")
    assert second.message_id == sent.message_id
    same([message.keys for message in consumer.received()], ["hard", "hard", "easy"])


@scenario(Ability.SEND, Ability.PUSH)
def a_message_refused_too_often_goes_to_the_dead_letters(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("dead"), fresh("consumers")
    broker.create_topic(topic, queues=1)
    # The C++ client leaves the limit of retries to the group; other clients set it themselves.
    remoting.create_group(broker.broker_address, group, retries_max=1)
    consumer = peer.start_push_consumer(
        broker.name_server, group, topic, fail={"hard": 99}, max_reconsume_times=1
    )
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    sent = producer.send(Message(topic=topic, keys="hard", body=b"too hard"))
    consumer.wait_for(2, timeout_s=RETRY_TIMEOUT_S)
    dead_letters = f"%DLQ%{group}"
    eventually(
        lambda: b"too hard" in remoting.pull_all(broker.broker_address, dead_letters),
        "the dead letter",
    )
    reader = peer.start_push_consumer(broker.name_server, fresh("undertakers"), dead_letters)
    (found,) = reader.wait_for(1)
    assert (found.keys, found.body) == ("hard", b"too hard")
    assert found.message_id == sent.message_id
    assert len(consumer.received()) == 2


@scenario(Ability.SEND, Ability.PUSH)
def only_the_tags_that_were_asked_for_arrive(broker: Broker, peer: Peer) -> None:
    topic = fresh("tags")
    broker.create_topic(topic, queues=1)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    # "Aa" and "BB" have the same Java hash, by which brokers filter; the client filters again.
    for tag in ("Aa", "BB", "other", "paid", "sent"):
        producer.send(Message(topic=topic, keys=tag, tags=tag))
    producer.send(Message(topic=topic, keys="none"))
    producer.send(Message(topic=topic, keys="last", tags="paid"))
    consumer = peer.start_push_consumer(
        broker.name_server, fresh("consumers"), topic, expression="Aa || paid || sent"
    )
    found = consumer.wait_for(4)
    same([message.keys for message in found], ["Aa", "paid", "sent", "last"])


@scenario(Ability.QUEUE_SELECTOR, Ability.ORDERLY)
def each_queue_is_consumed_in_order(broker: Broker, peer: Peer) -> None:
    topic = fresh("order")
    broker.create_topic(topic, queues=3)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for step in range(6):
        for queue in range(3):
            producer.send_to_queue(Message(topic=topic, keys=f"q{queue}-{step}"), queue)
    consumer = peer.start_push_consumer(
        broker.name_server, fresh("consumers"), topic, orderly=True, fail={"q1-2": 1}
    )
    found = consumer.wait_for(18, accepted=True)
    taken: defaultdict[int, list[str | None]] = defaultdict(list)
    for message in found:
        taken[message.queue].append(message.keys)
    for queue in range(3):
        assert taken[queue] == [f"q{queue}-{step}" for step in range(6)]
    assert len(consumer.wait_for(2, lambda message: message.keys == "q1-2")) == 2


@scenario(Ability.SEND, Ability.BROADCAST)
def every_broadcast_consumer_gets_everything(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("broadcast"), fresh("consumers")
    broker.create_topic(topic)
    consumers = [
        peer.start_push_consumer(broker.name_server, group, topic, model=Model.BROADCASTING)
        for _ in range(2)
    ]
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    keys = [f"news-{number}" for number in range(8)]
    for key in keys:
        producer.send(Message(topic=topic, keys=key))
    for consumer in consumers:
        same([message.keys for message in consumer.wait_for(8)], keys)


@scenario(Ability.SEND, Ability.PUSH)
def the_rest_of_a_group_takes_over_from_one_that_leaves(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("share"), fresh("consumers")
    broker.create_topic(topic)
    leaving = peer.start_push_consumer(broker.name_server, group, topic)
    staying = peer.start_push_consumer(broker.name_server, group, topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    send_until_all_have_some(producer, topic, leaving, staying)
    leaving.stop()
    late = [f"late-{number}" for number in range(8)]
    for key in late:
        producer.send(Message(topic=topic, keys=key))
    found = staying.wait_for(8, lambda message: message.keys in late)
    same({message.keys for message in found}, late)


@scenario(Ability.SEND, Ability.PUSH)
def the_rest_of_a_group_takes_over_from_one_that_is_killed(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("inherit"), fresh("consumers")
    broker.create_topic(topic)
    staying = peer.start_push_consumer(broker.name_server, group, topic)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    with peer.another() as doomed:
        killed = doomed.start_push_consumer(broker.name_server, group, topic)
        send_until_all_have_some(producer, topic, killed, staying)
    late = [f"late-{number}" for number in range(8)]
    for key in late:
        producer.send(Message(topic=topic, keys=key))
    found = staying.wait_for(8, lambda message: message.keys in late)
    same({message.keys for message in found}, late)


def send_until_all_have_some(producer: Producer, topic: str, *members: PushConsumer) -> None:
    """Send until each member got a message, which proves that they share the queues."""

    def all_have_some() -> bool:
        producer.send(Message(topic=topic, keys="early"))
        return all(member.received() for member in members)

    eventually(all_have_some, "message for each member")


@scenario(Ability.SEND, Ability.PUSH)
def a_group_goes_on_where_it_stopped(broker: Broker, peer: Peer) -> None:
    topic, group = fresh("resume"), fresh("consumers")
    broker.create_topic(topic, queues=1)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    first = peer.start_push_consumer(broker.name_server, group, topic)
    for key in ("done", "in hand"):
        producer.send(Message(topic=topic, keys=key))
        first.wait_for(1, lambda message, key=key: message.keys == key)  # type: ignore[misc]
    # A clean stop: a client commits its offsets at shutdown. The last message may not count yet,
    # since its listener reported it before it returned.
    first.stop()
    producer.send(Message(topic=topic, keys="after"))
    second = peer.start_push_consumer(broker.name_server, group, topic)
    second.wait_for(1, lambda message: message.keys == "after")
    same({message.keys for message in second.received()} - {"in hand"}, ["after"])


@scenario(Ability.SEND, Ability.LITE_PULL)
def a_lite_pull_consumer_polls_and_seeks(broker: Broker, peer: Peer) -> None:
    topic = fresh("lite")
    broker.create_topic(topic, queues=1)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for number in range(4):
        producer.send(Message(topic=topic, keys=f"m-{number}"))
    consumer = peer.start_lite_pull_consumer(
        broker.name_server, fresh("consumers"), topic, assign=True
    )

    def poll(count: int) -> list[str | None]:
        found: list[str | None] = []
        while len(found) < count:
            polled = consumer.poll(20_000)
            assert polled, found
            found += [message.keys for message in polled]
        return found

    assert poll(4) == ["m-0", "m-1", "m-2", "m-3"]
    consumer.seek(topic, 0, 2)
    assert poll(2) == ["m-2", "m-3"]
    consumer.seek(topic, 0, "begin")
    assert poll(4) == ["m-0", "m-1", "m-2", "m-3"]
    consumer.commit()


@scenario(Ability.SEND, Ability.PULL)
def a_pull_consumer_names_its_offsets(broker: Broker, peer: Peer) -> None:
    topic = fresh("pull")
    broker.create_topic(topic, queues=1)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    for number in range(4):
        producer.send(
            Message(topic=topic, keys=f"m-{number}", tags="even" if number % 2 else "odd")
        )
    consumer = peer.start_pull_consumer(broker.name_server, fresh("consumers"))
    assert consumer.queues(topic) == [0]
    pulled = consumer.pull(topic, 0, 1, max_count=2)
    assert (pulled.status, pulled.next_offset) == ("FOUND", 3)
    assert (pulled.min_offset, pulled.max_offset) == (0, 4)
    assert [message.keys for message in pulled.messages] == ["m-1", "m-2"]
    assert consumer.pull(topic, 0, 4).status == "NO_NEW_MSG"
    assert consumer.pull(topic, 0, 9).status == "OFFSET_ILLEGAL"
    assert consumer.pull(topic, 0, 0, expression="nobody").status == "NO_MATCHED_MSG"
    third = pulled.messages[1]
    offsets = consumer.offsets(topic, 0, at_ms=third.stored_at_ms)
    assert (offsets.min, offsets.max) == (0, 4)
    # Several messages may share a millisecond; the search returns the first of them.
    assert offsets.at_time <= third.queue_offset
    assert consumer.offsets(topic, 0, at_ms=0).at_time == 0
    assert 0 < offsets.earliest_stored_at_ms <= third.stored_at_ms


@scenario(Ability.SEND, Ability.PULL_ALL)
def all_can_be_pulled(broker: Broker, peer: Peer) -> None:
    topic = fresh("all")
    broker.create_topic(topic, queues=2)
    producer = peer.start_producer(broker.name_server, fresh("producers"))
    keys = [f"m-{number}" for number in range(6)]
    for key in keys:
        producer.send(Message(topic=topic, keys=key))
    consumer = peer.start_pull_consumer(broker.name_server, fresh("consumers"))
    same([message.keys for message in consumer.pull_all(topic)], keys)


@scenario(Ability.SEND, Ability.PUSH, Ability.TRACE)
def traces_arrive_like_messages(broker: Broker, peer: Peer) -> None:
    topic, traces = fresh("traced"), fresh("traces")
    broker.create_topic(topic)
    broker.create_topic(traces)
    producer = peer.start_producer(broker.name_server, fresh("producers"), trace_topic=traces)
    sent = producer.send(Message(topic=topic, keys="seen"))
    assert sent.message_id is not None
    message_id = sent.message_id.encode()
    consumer = peer.start_push_consumer(
        broker.name_server, fresh("consumers"), topic, trace_topic=traces
    )
    consumer.wait_for(1)
    reader = peer.start_push_consumer(broker.name_server, fresh("consumers"), traces)
    for step in (b"Pub", b"SubBefore", b"SubAfter"):
        reader.wait_for(
            1,
            lambda found, step=step: step in found.body and message_id in found.body,  # type: ignore[misc]
        )
