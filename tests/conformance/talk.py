"""Requests that the conformance tests send as consumers, and helpers for the broker's clock."""

from __future__ import annotations

from typing import Any

from escrowmq.broker.server import Server
from escrowmq.protocol.remoting.bodies import LockRequest, QueueName, encode_body
from escrowmq.protocol.remoting.client_bodies import ConsumerMembership, Heartbeat, SubscriptionBody
from escrowmq.protocol.remoting.cluster_bodies import GroupConfig
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.consumer_headers import PullHeader, SendBackHeader
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.testing.clock import ManualClock
from tests.unit.broker.wire import Peer, visible
from tests.unit.store.helpers import releasable

SUBSCRIBES = 4
MAY_WAIT = 2
COMMITS = 1
_OF_ALL_GROUPS = ("fingerprint", "is_without_subscriptions")


def clock_of(server: Server) -> ManualClock:
    """Return the clock that a test moves."""
    clock = server._clock
    assert isinstance(clock, ManualClock)
    return clock


def is_due(server: Server) -> bool:
    """Return whether a delayed message would be visible now."""
    return bool(releasable(server.broker.store.table, server.broker.clock.now_ms(), 1))


def beating(group: str = "shop", client_id: str = "c1", **fields: Any) -> bytes:  # noqa: ANN401
    """Make the heartbeat of a consumer of ``orders``."""
    of_all = {name: fields.pop(name) for name in _OF_ALL_GROUPS if name in fields}
    values: dict[str, Any] = {
        "group": group,
        "subscriptions": (SubscriptionBody(topic="orders", version=1),),
        **fields,
    }
    said = Heartbeat(client_id=client_id, consumers=(ConsumerMembership(**values),), **of_all)
    return encode_body(said)


async def beat(peer: Peer, *arguments: str, **fields: Any) -> RemotingFrame:  # noqa: ANN401
    """Send a consumer's heartbeat."""
    return await peer.ask(RequestCode.HEART_BEAT, body=beating(*arguments, **fields))


def pulling(offset: int = 0, **fields: Any) -> PullHeader:  # noqa: ANN401 - fields of the header
    """Make a pull by the group ``shop`` from queue 1 of ``orders``."""
    values: dict[str, Any] = {
        "consumer_group": "shop",
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": offset,
        "messages_max": 32,
        "sys_flag": SUBSCRIBES,
        "commit_offset": 0,
        "wait_ms": 15_000,
        "subscription": "*",
        "subscription_version": 0,
        **fields,
    }
    return PullHeader(**values)


async def put_group(peer: Peer, **fields: Any) -> RemotingFrame:  # noqa: ANN401 - fields of the body
    """Create or change the group ``shop``."""
    body = encode_body(GroupConfig(**{"name": "shop", **fields}))
    return await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def give_back(
    peer: Peer,
    server: Server,
    topic: str = "orders",
    queue_id: int = 1,
    **fields: Any,  # noqa: ANN401 - fields of the header
) -> int:
    """Send back the last message of a queue; return the response code."""
    (*_, last) = visible(server, topic, queue_id)
    values = {"consumer_group": "shop", "delay_level": 0, **fields}
    header = SendBackHeader(log_offset=last.log_offset, **values)
    return (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)).code


def locking(group: str = "shop", client_id: str = "c1") -> bytes:
    """Make a lock request for queue 1 of ``orders``."""
    queue = QueueName(broker_name="broker-a", topic="orders", queue_id=1)
    return encode_body(LockRequest(consumer_group=group, client_id=client_id, queues=(queue,)))
