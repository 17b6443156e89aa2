"""Lag of consumer groups, computed on demand and never stored.

A group has a lag for each topic in which it has acknowledged something. In a queue of such a topic
in which it has acknowledged nothing, all messages count as lag.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import msgspec

from escrowmq.broker.state.counting import BrokerCounts
from escrowmq.broker.state.queues import Queues
from escrowmq.broker.state.topics import Topics
from escrowmq.model.topic_names import RETRY_PREFIX, SYSTEM_GROUP_PREFIX
from escrowmq.protocol.message.message_views import SYSTEM_TOPICS
from escrowmq.store.meta.meta import Meta

if TYPE_CHECKING:
    from escrowmq.broker.pop.service import PopService

OFFSETS_MAX = 100_000
"""Offsets to look at; there is one for each group and queue."""


class GroupLag(msgspec.Struct, kw_only=True):
    """Lag of one group in one topic."""

    group: str
    topic: str
    #: Unacknowledged messages; of those, delivered to the group, and not yet delivered.
    messages: int = 0
    in_flight: int = 0
    ready: int = 0
    #: When the oldest of all, and of the undelivered ones, became visible; 0 if there is none.
    since_ms: int = 0
    ready_since_ms: int = 0

    @property
    def is_retry(self) -> bool:
        """Whether these are retries of messages that the group failed to handle."""
        return self.topic.startswith(RETRY_PREFIX)


def is_system(topic: str, group: str = "") -> bool:
    """Whether the topic or group belongs to the system, by RocketMQ's rule."""
    return topic in SYSTEM_TOPICS or group.upper().startswith(SYSTEM_GROUP_PREFIX)


class Readers(Protocol):
    """Parts of a broker that know how far its consumer groups have read."""

    meta: Meta
    topics: Topics
    queues: Queues
    counts: BrokerCounts
    popping: PopService


def lags(readers: Readers) -> Iterator[GroupLag]:
    """Yield the lag of each group and topic; the broker's state may change between two of them."""
    pairs = {(group, topic): None for group, topic, _ in islice(readers.meta.offsets, OFFSETS_MAX)}
    for group, topic in pairs:
        found = readers.topics.get(topic)
        if found is not None:
            yield _lag(readers, group, topic, found.read_queue_count)


def _lag(readers: Readers, group: str, topic: str, queue_count: int) -> GroupLag:
    lag = GroupLag(group=group, topic=topic)
    out = readers.counts.out.get((group, topic))
    now_ms = readers.popping.clock.now_ms()
    for queue_id in range(queue_count):
        queue = readers.queues.get(topic, queue_id)
        if queue is None:
            continue
        start, end = queue.start, queue.end
        acknowledged = readers.meta.offsets.get((group, topic, queue_id), 0)
        acknowledged = min(max(acknowledged, start), end)
        pulled = acknowledged if out is None else out.pulled.get(queue_id, acknowledged)
        pulled = min(max(pulled, acknowledged), end)
        progress = readers.popping.places.progress(group, topic, queue_id, now_ms)
        messages, in_flight = end - acknowledged, pulled - acknowledged
        if progress.is_popped:
            messages = max(messages - progress.beyond, 0)
            in_flight = min(progress.in_flight, messages)
        lag.messages += messages
        lag.in_flight += in_flight
        lag.ready += messages - in_flight
        if acknowledged < end:
            lag.since_ms = _earlier(lag.since_ms, queue.at_ms(acknowledged))
        if pulled < end:
            lag.ready_since_ms = _earlier(lag.ready_since_ms, queue.at_ms(pulled))
    return lag


def _earlier(one_ms: int, other_ms: int) -> int:
    """Return the earlier of two instants, where 0 stands for none."""
    return min(one_ms or other_ms, other_ms or one_ms)
