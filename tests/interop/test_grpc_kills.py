"""Official 5.x clients while their broker is stopped and killed, and beside 4.x clients.

In the storm all clients send to one topic, so the broker asks any of them about an orphan: those of
Go and Python, whose streams come back minutes later, end through the Java and Node.js clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.interop.errors import WaitedInVain
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.grpc_clients.clients import Draft, SimpleConsumer
from tests.interop.grpc_clients.peers import GrpcPeer, Python5Peer, every_grpc_peer
from tests.interop.grpc_clients.storm import Sender, Storm, Taker
from tests.interop.harness import JAVA_4, JavaPeer
from tests.interop.remoting import create_topic
from tests.interop.scenario import CHECKS_MAX, eventually, fresh, same
from tests.interop.storm import QUEUES
from tests.interop.test_kills import log_count, status
from tests.interop.values import Answer, Message, View

pytestmark = pytest.mark.xdist_group("grpc-kills")

#: Transactions that each sender completes between two blows, at work all the time.
ROUND = 6
BLOWS: tuple[Callable[[Escrow], None], ...] = (Escrow.stop, Escrow.kill, Escrow.kill)
SETTLE_TIMEOUT_S = 120


@pytest.fixture
def killed_broker() -> Iterator[Escrow]:
    with quick_escrow() as broker:
        yield broker


@pytest.fixture
def peers() -> Iterator[list[GrpcPeer]]:
    with ExitStack() as running:
        yield [running.enter_context(peer) for peer in every_grpc_peer()]


def test_nothing_is_lost_or_doubled_when_the_broker_is_stopped_and_killed(
    killed_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic = fresh("storm")
    create_topic(killed_broker.name_server, topic, QUEUES, "TRANSACTION")
    storm = begun(killed_broker, peers, topic)
    storm.goes_on(ROUND)
    for blow in BLOWS:
        blow(killed_broker)
        killed_broker.start_again()
        storm.goes_on(ROUND)
    for sender in storm.senders:
        sender.stop()
    required = storm.required()
    eventually(
        lambda: status(killed_broker).undecided == 0,
        "end of all checks",
        timeout_s=SETTLE_TIMEOUT_S,
    )
    storm.wait_for_all(required, timeout_s=SETTLE_TIMEOUT_S)
    for taker in storm.takers:
        taker.stop()
    assert storm.received_after_ack() == []
    judge = peers[0].start_simple_consumer(killed_broker.grpc_address, fresh("judge"), topic)
    found = [view.key for view in drained(judge, log_count(killed_broker, topic))]
    assert storm.taken() == set(found) == required
    doubled = {key for key in found if found.count(key) > 1}
    assert doubled <= storm.repeated(), "a message came twice, but was sent once"


def begun(broker: Escrow, peers: list[GrpcPeer], topic: str) -> Storm:
    """Start a sender and a taker with each client."""
    storm, group = Storm(), fresh("takers")
    members = [peer.start_grpc_producer(broker.grpc_address, topic) for peer in peers]
    for peer, producer in zip(peers, members, strict=True):
        sender = Sender(peer.name, topic, producer)
        sender.members = members
        storm.senders.append(sender)
        consumer = peer.start_simple_consumer(broker.grpc_address, group, topic)
        taker = Taker(f"{peer.name}-taker", consumer, tells_refusal=peer.tells_refused_ack)
        storm.takers.append(taker)
    storm.start()
    return storm


def test_an_acknowledged_message_does_not_come_again_after_a_kill(
    killed_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic, group = fresh("acks"), fresh("group")
    killed_broker.create_topic(topic, QUEUES)
    producer = peers[0].start_grpc_producer(killed_broker.grpc_address, topic)
    for number in range(8):
        producer.send(Draft(topic=topic, key=str(number)))
    consumer = peers[0].start_simple_consumer(killed_broker.grpc_address, group, topic)
    taken = {one.key: one for one in consumer.receive_some(8)}
    for key in ("0", "3", "6"):
        consumer.ack(taken[key])
    killed_broker.kill()
    killed_broker.start_again()
    another = peers[1].start_simple_consumer(killed_broker.grpc_address, group, topic)
    same([view.key for view in another.take(5)], ["1", "2", "4", "5", "7"])


def test_a_transaction_that_stays_unknown_is_parked(
    killed_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic = fresh("unknown")
    killed_broker.create_topic(topic, QUEUES, "TRANSACTION")
    producers = [peer.start_grpc_producer(killed_broker.grpc_address, topic) for peer in peers]
    for peer, producer in zip(peers, producers, strict=True):
        producer.send_in_transaction(Draft(topic=topic, key=peer.name), "leave")
    eventually(lambda: status(killed_broker).parked == len(peers), "parked transactions")
    for peer, producer in zip(peers, producers, strict=True):
        assert producer.checks(peer.name) == CHECKS_MAX


def test_a_4x_producer_reaches_a_5x_consumer_and_the_reverse(broker: Escrow) -> None:
    topic = fresh("mixed")
    broker.create_topic(topic, QUEUES, "TRANSACTION")
    with JavaPeer(JAVA_4) as old, Python5Peer() as new:
        pushed = old.start_push_consumer(broker.name_server, fresh("old"), topic)
        taking = new.start_simple_consumer(broker.grpc_address, fresh("new"), topic)
        from_old = old.start_transaction_producer(broker.name_server, fresh("producers"))
        from_new = new.start_grpc_producer(broker.grpc_address, topic)
        red = {"colour": "red"}
        message = Message(topic=topic, keys="old", tags="t", body=b"4", properties=red)
        from_old.send_in_transaction(message, local=Answer.COMMIT)
        draft = Draft(topic=topic, key="new", tag="t", body=b"5", properties=red)
        from_new.send_in_transaction(draft, "commit")
        views = {view.key: view for view in taking.take(2)}
        received = {one.keys: one for one in pushed.wait_for(2)}
    for key, body in (("old", b"4"), ("new", b"5")):
        view, other = views[key], received[key]
        assert (view.body, view.tag, view.properties["colour"]) == (body, "t", "red")
        assert (other.body, other.tags, other.properties["colour"]) == (body, "t", "red")
        assert view.message_id == other.message_id


def drained(consumer: SimpleConsumer, count: int) -> list[View]:
    """Take this many messages, each at once."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    found: list[View] = []
    while len(found) < count:
        if time.monotonic() > deadline:
            raise WaitedInVain(f"{count} messages", SETTLE_TIMEOUT_S, list(found))
        for taken in consumer.receive():
            consumer.ack(taken)
            found.append(taken.view)
    return found
