"""Official 5.x clients while their broker is stopped and killed, and beside 4.x clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count

import pytest

from tests.interop.errors import PeerRefused, WaitedInVain
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.grpc_clients.clients import Draft, GrpcProducer, SimpleConsumer
from tests.interop.grpc_clients.peers import GrpcPeer, Python5Peer, every_grpc_peer
from tests.interop.harness import JAVA_4, JavaPeer
from tests.interop.remoting import create_topic
from tests.interop.scenario import CHECKS_MAX, eventually, fresh, same
from tests.interop.test_kills import status
from tests.interop.values import Answer, Message, View

pytestmark = pytest.mark.xdist_group("grpc-kills")

QUEUES = 2
#: Transactions that each producer begins between two blows.
ROUND = 6
BLOWS: tuple[Callable[[Escrow], None], ...] = (Escrow.stop, Escrow.kill, Escrow.kill)
SETTLE_TIMEOUT_S = 120
#: How the transactions end, in turn.
ENDS = ("commit", "rollback", "leave")


@pytest.fixture
def own_broker() -> Iterator[Escrow]:
    with quick_escrow() as broker:
        yield broker


@pytest.fixture
def peers() -> Iterator[list[GrpcPeer]]:
    with ExitStack() as running:
        yield [running.enter_context(peer) for peer in every_grpc_peer()]


def test_no_message_is_lost_or_shown_unasked_when_the_broker_is_stopped_and_killed(
    own_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic = fresh("storm")
    create_topic(own_broker.name_server, topic, QUEUES, "TRANSACTION")
    producers = [peer.start_grpc_producer(own_broker.grpc_address, topic) for peer in peers]
    required: set[str] = set()
    forbidden: set[str] = set()
    repeated: set[str] = set()
    for number, blow in enumerate((*BLOWS, None)):
        for peer, producer in zip(peers, producers, strict=True):
            for turn in range(ROUND):
                key = f"{peer.name}-{number}-{turn}"
                end = ENDS[turn % len(ENDS)]
                for other in producers:
                    # All producers of a topic are one group: the broker may ask any of them.
                    other.script(key, checks_after(end))
                if send_until_taken(producer, Draft(topic=topic, key=key), end) > 1:
                    repeated.add(key)
                (forbidden if end == "rollback" else required).add(key)
        if blow is not None:
            blow(own_broker)
            own_broker.start_again()
    consumer = peers[0].start_simple_consumer(own_broker.grpc_address, fresh("judge"), topic)
    found = [view.key for view in drained(consumer, required)]
    assert required <= set(found)
    assert not forbidden & set(found)
    doubled = {key for key in found if found.count(key) > 1}
    assert doubled <= repeated, "a message came twice, and nobody sent it twice"


def test_an_acknowledged_message_does_not_come_again_after_a_kill(
    own_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic, group = fresh("acks"), fresh("group")
    own_broker.create_topic(topic, QUEUES)
    producer = peers[0].start_grpc_producer(own_broker.grpc_address, topic)
    for number in range(8):
        producer.send(Draft(topic=topic, key=str(number)))
    consumer = peers[0].start_simple_consumer(own_broker.grpc_address, group, topic)
    taken = {one.key: one for one in consumer.receive_some(8)}
    for key in ("0", "3", "6"):
        consumer.ack(taken[key])
    own_broker.kill()
    own_broker.start_again()
    another = peers[1].start_simple_consumer(own_broker.grpc_address, group, topic)
    same([view.key for view in another.take(5)], ["1", "2", "4", "5", "7"])


def test_a_transaction_that_stays_unknown_is_parked(
    own_broker: Escrow, peers: list[GrpcPeer]
) -> None:
    topic = fresh("unknown")
    own_broker.create_topic(topic, QUEUES, "TRANSACTION")
    producers = [peer.start_grpc_producer(own_broker.grpc_address, topic) for peer in peers]
    for peer, producer in zip(peers, producers, strict=True):
        producer.send_in_transaction(Draft(topic=topic, key=peer.name), "leave")
    eventually(lambda: status(own_broker).parked == len(peers), "parked transactions")
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


def checks_after(end: str) -> list[Answer]:
    """Return the answers of a database in which the transaction ended like this."""
    return [Answer.ROLLBACK if end == "rollback" else Answer.COMMIT]


def send_until_taken(producer: GrpcProducer, draft: Draft, end: str) -> int:
    """Send, and repeat until the client says that it worked; return the number of attempts."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    for attempt in count(1):
        try:
            producer.send_in_transaction(draft, end, checks=checks_after(end))
        except PeerRefused:
            if time.monotonic() > deadline:
                raise
        else:
            return attempt
    raise AssertionError("a count does not end")


def drained(consumer: SimpleConsumer, keys: set[str]) -> list[View]:
    """Take messages until all these keys were there."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    found: list[View] = []
    while not keys <= {view.key for view in found}:
        if time.monotonic() > deadline:
            missing = sorted(keys - {view.key for view in found})
            raise WaitedInVain(f"messages {missing}", SETTLE_TIMEOUT_S, [])
        for taken in consumer.receive():
            consumer.ack(taken)
            found.append(taken.view)
    return found
