"""Promises to every official 5.x client; see ``scenario`` for the rules of a scenario."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.interop import remoting
from tests.interop.errors import PeerRefused
from tests.interop.escrow import Escrow
from tests.interop.grpc_clients.clients import INVISIBLE_MS, Draft
from tests.interop.grpc_clients.peers import HANGS, GrpcPeer
from tests.interop.scenario import eventually, fresh, same
from tests.interop.values import Answer

Play = Callable[[Escrow, GrpcPeer], None]

GRPC_SCENARIOS: list[Play] = []
QUEUES = 2
DELAY_MS = 3_000
#: Longer than a test waits with an open receive.
LONG_MS = 20_000
#: Time to recall a message before it is due.
RECALL_MS = 10_000
#: Clients round instants to seconds.
ROUNDING_MS = 1_000
#: A message that was refused once is visible again after 10 s.
AGAIN_TIMEOUT_S = 60
#: The messages of a push consumer that lost its connection are visible again after 60 s.
KILLED_TIMEOUT_S = 120
MESSAGE_TYPE_CONFLICT = 40014
PRECONDITION_FAILED = 42800


def grpc_scenario(play: Play) -> Play:
    """Register a function as a scenario of 5.x clients."""
    GRPC_SCENARIOS.append(play)
    return play


def grpc_scenarios_for(peer: GrpcPeer) -> list[Play]:
    """Return the scenarios for whose calls the client has methods."""
    return [
        play
        for play in GRPC_SCENARIOS
        if (peer.can_recall or play is not a_recalled_message_never_comes)
        and (peer.can_hang or play is not a_killed_push_consumers_message_comes_again)
    ]


def topic_of(broker: Escrow, kind: str, queues: int = QUEUES) -> str:
    """Create a topic for one type of messages."""
    topic = fresh(kind.lower())
    broker.create_topic(topic, queues, kind)
    return topic


def orderly_group(broker: Escrow) -> str:
    """Make a group that gets the messages of a queue in order."""
    group = fresh("group")
    remoting.create_group(broker.broker_address, group, retries_max=16, is_orderly=True)
    return group


@grpc_scenario
def a_message_arrives_as_it_was_sent(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "NORMAL")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    body = bytes(range(256)) * 512
    draft = Draft(topic=topic, key="k-1", tag="red", body=body, properties={"colour": "blue"})
    sent = producer.send(draft)
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    (view,) = consumer.take()
    assert (view.message_id, view.topic, view.body) == (sent.message_id, topic, body)
    assert (view.key, view.tag, view.attempt) == ("k-1", "red", 1)
    assert view.properties == {"colour": "blue"}


@grpc_scenario
def a_tag_selects_messages(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "NORMAL")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    for number, tag in enumerate(("red", "green", "blue", "red")):
        producer.send(Draft(topic=topic, key=f"{tag}-{number}", tag=tag))
    consumer = peer.start_simple_consumer(
        broker.grpc_address, fresh("group"), topic, expression="red || blue"
    )
    same([view.key for view in consumer.take(3)], ["red-0", "blue-2", "red-3"])


@grpc_scenario
def a_commit_shows_a_message_and_a_rollback_does_not(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "TRANSACTION", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    producer.send_in_transaction(Draft(topic=topic, key="first"), "commit")
    producer.send_in_transaction(Draft(topic=topic, key="never"), "rollback")
    producer.send_in_transaction(Draft(topic=topic, key="last"), "commit")
    same([view.key for view in consumer.take(2)], ["first", "last"])
    assert producer.checks("never") == 0


@grpc_scenario
def an_undecided_message_is_asked_about_until_it_is_decided(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "TRANSACTION", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    refused = Draft(topic=topic, key="refused")
    producer.send_in_transaction(refused, "leave", checks=[Answer.ROLLBACK])
    asked = Draft(topic=topic, key="asked", body=b"half", tag="t", properties={"colour": "red"})
    sent = producer.send_in_transaction(
        asked, "leave", checks=[Answer.UNKNOWN, Answer.UNKNOWN, Answer.COMMIT]
    )
    check = producer.wait_for_check("asked", 3).view
    assert (check.message_id, check.body, check.tag) == (sent.message_id, b"half", "t")
    assert check.properties == {"colour": "red"}
    (view,) = consumer.take()
    assert view.key == "asked"
    assert (producer.checks("refused"), producer.checks("asked")) == (1, 3)


@grpc_scenario
def a_restarted_producer_is_asked_about_its_orphans(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "TRANSACTION", queues=1)
    with peer.another() as doomed:
        killed = doomed.start_grpc_producer(broker.grpc_address, topic)
        killed.send_in_transaction(Draft(topic=topic, key="orphan"), "leave")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    producer.script("orphan", [Answer.COMMIT])
    # The first question may come before the script.
    producer.wait_for_check("orphan")
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    (view,) = consumer.take()
    assert view.key == "orphan"


@grpc_scenario
def the_type_of_a_topic_is_enforced(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "TRANSACTION")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    with pytest.raises(PeerRefused) as refusal:
        producer.send(Draft(topic=topic, key="plain"))
    # A client that knows the type refuses by itself.
    assert refusal.value.code in (None, MESSAGE_TYPE_CONFLICT)


@grpc_scenario
def a_delayed_message_comes_when_it_is_due(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "DELAY")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    due_at_ms = int(time.time() * 1000) + DELAY_MS
    producer.send(Draft(topic=topic, key="later", deliver_at_ms=due_at_ms))
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    (view,) = consumer.take()
    assert view.key == "later"
    assert time.time() * 1000 >= due_at_ms - ROUNDING_MS


@grpc_scenario
def a_recalled_message_never_comes(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "DELAY", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    due_at_ms = int(time.time() * 1000) + RECALL_MS
    taken_back, kept = (
        producer.send(Draft(topic=topic, key=key, deliver_at_ms=due_at_ms + later_ms))
        for key, later_ms in (("taken back", 0), ("kept", DELAY_MS))
    )
    assert taken_back.recall_handle is not None
    assert kept.recall_handle is not None
    # A repeat succeeds like the first time: its answer may have been lost.
    for _ in range(2):
        assert producer.recall(topic, taken_back.recall_handle) == taken_back.message_id
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    assert [view.key for view in consumer.take()] == ["kept"]
    with pytest.raises(PeerRefused) as refusal:
        producer.recall(topic, kept.recall_handle)
    assert refusal.value.code == PRECONDITION_FAILED


@grpc_scenario
def an_invisible_time_can_be_renewed_and_expires(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "NORMAL", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    for key in ("renewed", "expired"):
        producer.send(Draft(topic=topic, key=key))
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    taken = {one.key: one for one in consumer.receive_some(2)}
    started = time.monotonic()
    consumer.change_invisible(taken["renewed"], 3 * INVISIBLE_MS)
    (again,) = consumer.receive_some(1)
    assert (again.key, again.view.attempt) == ("expired", 2)
    assert time.monotonic() - started >= INVISIBLE_MS / 1000 - 1
    # The renewed receipt is good, and the old one of the other message is not.
    consumer.ack(taken["renewed"])
    if peer.tells_refused_ack:
        with pytest.raises(PeerRefused):
            consumer.ack(taken["expired"])
    consumer.ack(again)


@grpc_scenario
def messages_of_a_killed_consumer_come_again(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "NORMAL", queues=1)
    group = fresh("group")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    for key in ("acked", "taken"):
        producer.send(Draft(topic=topic, key=key))
    with peer.another() as doomed:
        killed = doomed.start_simple_consumer(broker.grpc_address, group, topic)
        taken = {one.key: one for one in killed.receive_some(2)}
        killed.ack(taken["acked"])
    staying = peer.start_simple_consumer(broker.grpc_address, group, topic)
    (again,) = staying.receive_some(1)
    assert (again.key, again.view.attempt) == ("taken", 2)
    staying.ack(again)


@grpc_scenario
def a_message_reaches_another_consumer_when_one_is_killed_in_a_receive(
    broker: Escrow, peer: GrpcPeer
) -> None:
    topic = topic_of(broker, "NORMAL", queues=1)
    group = fresh("group")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    with peer.another() as doomed:
        killed = doomed.start_simple_consumer(broker.grpc_address, group, topic, wait_ms=LONG_MS)
        producer.send(Draft(topic=topic, key="first"))
        assert [view.key for view in killed.take()] == ["first"]
        killed.begin_receive()
        producer.send(Draft(topic=topic, key="second"))
    staying = peer.start_simple_consumer(broker.grpc_address, group, topic)
    (found,) = staying.receive_some(1)
    # The broker may have handed it to the killed client.
    assert (found.key, found.view.attempt in (1, 2)) == ("second", True)
    staying.ack(found)
    producer.send(Draft(topic=topic, key="third"))
    assert [view.key for view in staying.take()] == ["third"]


@grpc_scenario
def a_failing_message_holds_up_its_queue(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "FIFO", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    for step in range(4):
        producer.send(Draft(topic=topic, key=f"step-{step}", message_group="account"))
    consumer = peer.start_simple_consumer(
        broker.grpc_address, orderly_group(broker), topic, wait_ms=1_000
    )
    (first,) = consumer.receive(1)
    assert (first.key, first.view.message_group) == ("step-0", "account")
    consumer.ack(first)
    (failing,) = consumer.receive(1)
    assert consumer.receive(1) == []
    (again,) = consumer.receive_some(1, max_count=1)
    assert (failing.key, again.key, again.view.attempt) == ("step-1", "step-1", 2)
    consumer.ack(again)
    assert [view.key for view in consumer.take(2)] == ["step-2", "step-3"]


@grpc_scenario
def a_push_consumer_of_an_orderly_group_keeps_the_order(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "FIFO", queues=1)
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    keys = [f"step-{step}" for step in range(4)]
    for key in keys:
        producer.send(Draft(topic=topic, key=key, message_group="account"))
    fail = {"step-1": 1} if peer.repeats_in_order else {}
    consumer = peer.start_grpc_push_consumer(
        broker.grpc_address, orderly_group(broker), topic, fail=fail
    )
    shown = consumer.wait_for(4 + len(fail), timeout_s=AGAIN_TIMEOUT_S)
    assert [one.view.key for one in shown] == [keys[0], *fail, *keys[1:]]


@grpc_scenario
def a_refused_message_is_pushed_again(broker: Escrow, peer: GrpcPeer) -> None:
    topic = topic_of(broker, "NORMAL")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    producer.send(Draft(topic=topic, key="hard"))
    producer.send(Draft(topic=topic, key="easy"))
    consumer = peer.start_grpc_push_consumer(
        broker.grpc_address, fresh("group"), topic, fail={"hard": 1}
    )
    first, second = consumer.wait_for(
        2, lambda shown: shown.view.key == "hard", timeout_s=AGAIN_TIMEOUT_S
    )
    assert (first.view.attempt, second.view.attempt) == (1, 2)
    eventually(lambda: len(consumer.wait_for(1)) >= 3, "the easy message")
    same([one.view.key for one in consumer.wait_for(3)], ["hard", "hard", "easy"])


@grpc_scenario
def a_killed_push_consumers_message_comes_again(broker: Escrow, peer: GrpcPeer) -> None:
    topic, group = topic_of(broker, "NORMAL"), fresh("group")
    producer = peer.start_grpc_producer(broker.grpc_address, topic)
    producer.send(Draft(topic=topic, key="held"))
    with peer.another() as doomed:
        killed = doomed.start_grpc_push_consumer(
            broker.grpc_address, group, topic, fail={"held": HANGS}
        )
        (first,) = killed.wait_for(1)
    consumer = peer.start_grpc_push_consumer(broker.grpc_address, group, topic)
    (again,) = consumer.wait_for(1, timeout_s=KILLED_TIMEOUT_S)
    assert (first.view.attempt, again.view.attempt) == (1, 2)


@grpc_scenario
def an_unknown_topic_becomes_transactional_with_its_first_half(
    broker: Escrow, peer: GrpcPeer
) -> None:
    topic = fresh("new")
    # The Go client does not start without a topic that exists.
    producer = peer.start_grpc_producer(broker.grpc_address, topic_of(broker, "NORMAL"))
    producer.send_in_transaction(Draft(topic=topic, key="first"), "commit")
    consumer = peer.start_simple_consumer(broker.grpc_address, fresh("group"), topic)
    (view,) = consumer.take()
    assert view.key == "first"
