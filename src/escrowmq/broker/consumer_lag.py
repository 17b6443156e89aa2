"""How far consumer groups are behind: looked up when somebody asks, never kept.

A group counts for each topic that it has acknowledged something of.  A queue of such a topic of
which it never did counts as well: all of it lags.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.topics import RETRY_PREFIX, SYSTEM_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.broker.broker import Broker

OFFSETS_MAX = 100_000
"""Offsets that are looked at: one for each group and queue."""

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


class Lag(msgspec.Struct, kw_only=True):
    """One group and one topic."""

    group: str
    topic: str
    #: Not acknowledged; of those, given to the group and not yet given.
    messages: int = 0
    in_flight: int = 0
    ready: int = 0
    #: When the oldest one became visible: of all, and of those not yet given; 0 if there is none.
    since_ms: int = 0
    ready_since_ms: int = 0

    @property
    def is_retry(self) -> bool:
        """Whether these are messages that the group could not handle."""
        return self.topic.startswith(RETRY_PREFIX)


def is_system(topic: str, group: str = "") -> bool:
    """Whether it is the system's, by RocketMQ's rule."""
    return topic in SYSTEM_TOPICS or group.upper().startswith(SYSTEM_GROUP_PREFIX)


def lags(broker: Broker) -> Iterator[Lag]:
    """One after the other; the broker may go on in between."""
    pairs = {(group, topic): None for group, topic, _ in islice(broker.meta.offsets, OFFSETS_MAX)}
    for group, topic in pairs:
        found = broker.topics.get(topic)
        if found is not None:
            yield _lag(broker, group, topic, found.read_queue_count)


def _lag(broker: Broker, group: str, topic: str, queue_count: int) -> Lag:
    lag = Lag(group=group, topic=topic)
    out = broker.counts.out.get((group, topic))
    for queue_id in range(queue_count):
        queue = broker.queues.get(topic, queue_id)
        if queue is None:
            continue
        start, end = queue.start, queue.end
        acknowledged = broker.meta.offsets.get((group, topic, queue_id), 0)
        acknowledged = min(max(acknowledged, start), end)
        pulled = acknowledged if out is None else out.pulled.get(queue_id, acknowledged)
        pulled = min(max(pulled, acknowledged), end)
        lag.messages += end - acknowledged
        lag.in_flight += pulled - acknowledged
        lag.ready += end - pulled
        if acknowledged < end:
            lag.since_ms = _earlier(lag.since_ms, queue.at_ms(acknowledged))
        if pulled < end:
            lag.ready_since_ms = _earlier(lag.ready_since_ms, queue.at_ms(pulled))
    return lag


def _earlier(one_ms: int, other_ms: int) -> int:
    """The earlier of two instants of which 0 is none."""
    return min(one_ms or other_ms, other_ms or one_ms)
