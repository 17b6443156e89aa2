"""A broker on a machine whose clock the test sets."""

from __future__ import annotations

from escrowmq.broker.server import Server
from escrowmq.protocol.native.headers import HoldHeader, ListTransactionsHeader
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import ConsumerMembership, Heartbeat, SubscriptionBody
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import SendBackHeader
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.wire import (
    SEND,
    T0,
    Peer,
    sending,
    visible,
)

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TEN_YEARS = 3_650 * DAY
RETRY = ("%RETRY%shop", 0)
DEAD = ("%DLQ%shop", 0)
SMALL = {
    "segment_bytes_max": 4_096,
    "retention_ms": 3 * DAY * 1_000,
    "copy_after_ms": 1_000,
    "durability": "os",
}


async def jump(server: Server, clock: ManualClock, seconds: int) -> None:
    """Move the wall clock and let the broker notice."""
    clock.jump(seconds=seconds)
    await server._look_at_clock()


async def passes(server: Server, clock: ManualClock, *, ms: int = 0, seconds: int = 0) -> None:
    """Let time pass and release the messages that are due."""
    clock.advance(ms=ms, seconds=seconds)
    await server._look_at_clock()
    await server.broker.releasing.release_due()


async def shop(server: Server) -> Peer:
    """Connect a consumer of `orders`."""
    peer = await Peer.to(server.broker_address)
    wants = ConsumerMembership(group="shop", subscriptions=(SubscriptionBody(topic="orders"),))
    said = Heartbeat(client_id="c1", consumers=(wants,))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said))
    return peer


async def send(peer: Peer, body: str, born_at_ms: int = T0, **properties: str) -> None:
    header = sending(properties=properties, born_at_ms=born_at_ms)
    assert (await peer.ask(SEND, header, body.encode())).code == ResponseCode.SUCCESS


async def give_back(peer: Peer, server: Server, topic: str, queue_id: int) -> None:
    (*_, last) = visible(server, topic, queue_id)
    header = SendBackHeader(log_offset=last.log_offset, consumer_group="shop", delay_level=0)
    answer = await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.code == ResponseCode.SUCCESS


def seen(server: Server) -> list[str]:
    return [one.body.decode() for one in visible(server)]


async def fill(server: Server, peer: Peer, count: int = 100) -> int:
    for number in range(count):
        await send(peer, f"{number:0200d}")
    assert len(server.broker.store.log.segments) > 3
    return kept(server)


def kept(server: Server) -> int:
    """Return how many messages the queue holds."""
    queue = server.broker.reader.queue("orders", 1)
    return 0 if queue is None else queue.end - queue.start


def holding(transaction_id: str) -> HoldHeader:
    return HoldHeader(producer_group="pay", transaction_id=transaction_id, number=0)


def undecided_ones() -> ListTransactionsHeader:
    return ListTransactionsHeader(states="prepared")
