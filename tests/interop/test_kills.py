"""All stock clients at once, while their broker is stopped and killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.status_answer import StatusAnswer
from tests.interop.escrow import Escrow, quick_escrow
from tests.interop.harness import Ability, JavaPeer, Peer, every_peer
from tests.interop.judging import judge
from tests.interop.remoting import request
from tests.interop.scenario import eventually, fresh
from tests.interop.storm import QUEUES, OrdinaryWorker, Storm, TransactionWorker, wait_for_all

#: Java clients can send heartbeats sooner; the other clients send one every 30 seconds.
HEARTBEAT_MS = 1_000
SETTLE_TIMEOUT_S = 120
#: Messages that each producer sends between two blows.
SENDS = 60
#: Clients resume work after each row; the last row hits them while they recover.
BLOWS: tuple[tuple[Callable[[Escrow], None], ...], ...] = (
    (Escrow.stop,),
    (Escrow.kill,),
    (Escrow.kill,),
    (Escrow.kill, Escrow.kill, Escrow.stop),
)
GET_MAX_OFFSET = 30


@pytest.fixture
def native_broker() -> Iterator[Escrow]:
    with quick_escrow() as broker:
        yield broker


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    with ExitStack() as running:
        yield [running.enter_context(peer) for peer in every_peer()]


def test_nothing_is_lost_or_doubled_when_the_broker_is_stopped_and_killed(
    native_broker: Escrow, peers: list[Peer]
) -> None:
    topic = fresh("storm")
    native_broker.create_topic(topic, queues=QUEUES)
    storm = started(native_broker, peers, topic)
    quick = [peer.name for peer in peers if isinstance(peer, JavaPeer)]
    storm.goes_on(SENDS, storm.consumers)
    for blows in BLOWS:
        for blow in blows:
            blow(native_broker)
            native_broker.start_again()
        storm.goes_on(SENDS, quick)
    for worker in storm.workers:
        worker.stop()
    eventually(
        lambda: status(native_broker).undecided == 0,
        "end of all checks",
        timeout_s=SETTLE_TIMEOUT_S,
    )
    wait_for_all(storm, lambda: log_count(native_broker, topic), timeout_s=SETTLE_TIMEOUT_S)
    (reader,) = [peer for peer in peers if Ability.DELIVER_TIME in peer.abilities]
    log = reader.start_pull_consumer(native_broker.name_server, fresh("judge")).read_log(topic)
    assert all(worker.failed for worker in storm.ordinary), "no worker noticed"
    judge(
        log,
        required=storm.required(),
        possible=storm.possible(),
        seen={name: consumer.received() for name, consumer in storm.consumers.items()},
    )
    assert status(native_broker).contradictions == 0


def started(broker: Escrow, peers: list[Peer], topic: str) -> Storm:
    storm = Storm()
    names = broker.name_server
    for peer in peers:
        storm.consumers[peer.name] = peer.start_push_consumer(
            names, fresh("consumers"), topic, heartbeat_ms=HEARTBEAT_MS
        )
        # A client with its own retries doubles messages on any broker.
        producer = peer.start_producer(
            names, fresh("producers"), retries=0, heartbeat_ms=HEARTBEAT_MS
        )
        storm.ordinary.append(OrdinaryWorker(peer, producer, topic))
        if Ability.TRANSACTION in peer.abilities:
            transactional = peer.start_transaction_producer(
                names, fresh("producers"), heartbeat_ms=HEARTBEAT_MS
            )
            storm.transactions.append(TransactionWorker(peer, transactional, topic))
    for worker in storm.workers:
        worker.start()
    return storm


def status(broker: Escrow) -> StatusAnswer:
    with NativeCalls(broker.broker_address) as calls:
        told = calls.call(NativeCode.STATUS).header
    assert isinstance(told, StatusAnswer)
    return told


def log_count(broker: Escrow, topic: str) -> int:
    """Return the count of visible messages of a topic."""
    return sum(
        int(str(request(broker.broker_address, GET_MAX_OFFSET, fields).fields["offset"]))
        for fields in ({"topic": topic, "queueId": str(queue)} for queue in range(QUEUES))
    )
