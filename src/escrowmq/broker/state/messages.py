"""Makes messages from what their senders sent, for all kinds of requests.

The broker stores what the producer sent, and adds a few properties as RocketMQ's brokers do. A
half message keeps its real topic and queue; a bit in the stored layout marks it as a half message.
"""

from __future__ import annotations

import uuid
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.state.topics import QUEUES_MAX
from escrowmq.model.message import SentMessage
from escrowmq.model.topic_names import DEFAULT_TOPIC, DLQ_PREFIX, OWN_PREFIXES
from escrowmq.protocol.message.properties import (
    CLUSTER,
    MSG_REGION,
    TRACE_ON,
    UNIQ_KEY,
    format_properties,
    half_properties,
    join_properties,
)
from escrowmq.store.meta.meta import MessageType, Topic

if TYPE_CHECKING:
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.protocol.message.sent_facts import SentFacts

REGION = "DefaultRegion"
SHARDING_MARK = b"__SHARDINGKEY\x01"
"""The properties of an ordered message contain this."""


class Sender(msgspec.Struct, frozen=True, gc=False):
    """Facts about the sending of a message, besides its topic, body and properties."""

    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    reconsume_times: int = 0


class Messages:
    """Makes messages, and asks for their topics to be created."""

    def __init__(self, *, topics: Topics, clock: BrokerClock, cluster: str) -> None:
        self.topics = topics
        self._clock = clock
        self._turn = count()
        self._added = format_properties({MSG_REGION: REGION, TRACE_ON: "true", CLUSTER: cluster})

    def place(
        self,
        name: str,
        queue_id: int,
        now_ms: int,
        *,
        template: str = DEFAULT_TOPIC,
        queue_count: int = QUEUES_MAX,
        turn: int | None = None,
        message_type: MessageType = MessageType.NORMAL,
    ) -> tuple[Topic, int]:
        """Return the topic and queue of a message; for a queue below 0 the broker takes turns.

        A caller that may send the same message again passes ``turn``, to get the same queue. A
        topic that the message creates gets this message type.
        """
        topics = self.topics
        if name.startswith(OWN_PREFIXES):
            topics.for_group(name, 1, now_ms)
        topic = topics.to_send(
            name,
            queue_id,
            template=template,
            queue_count=queue_count,
            now_ms=now_ms,
            message_type=message_type,
        )
        if queue_id < 0:
            if turn is None:
                turn = next(self._turn)
            queue_id = turn % max(topic.write_queue_count, 1)
        return topic, queue_id

    def waits_ms(self, facts: SentFacts, born_at_ms: int) -> int:
        """Return how long a message waits before it is visible."""
        waits_ms = self.topics.delay_levels.delay_ms(facts.delay_level) or facts.deliver_after_ms
        if waits_ms or not facts.deliver_at_ms:
            return waits_ms
        return self._clock.wait_ms(facts.deliver_at_ms, born_at_ms)

    def half_suffix(self, transaction_id: str, topic: str, queue_id: int) -> bytes:
        """Return what the broker adds to the properties of a half message that has an id."""
        return half_properties(transaction_id, topic, queue_id) + self._added

    def make(
        self,
        place: tuple[Topic, int],
        body: bytes,
        properties: bytes,
        facts: SentFacts,
        sender: Sender,
        *,
        now_ms: int,
        is_half: bool,
        transaction_id: str = "",
    ) -> SentMessage:
        """Return the message; a half message without a transaction id uses its unique key."""
        topic, queue_id = place
        self.topics.check_type(topic, type_of(facts, properties, is_half=is_half))
        unique_key = facts.unique_key
        if not unique_key:
            unique_key = uuid.uuid4().hex.upper()
            properties = join_properties(properties, format_properties({UNIQ_KEY: unique_key}))
        if is_half:
            real = half_properties(transaction_id or unique_key, topic.name, queue_id)
            properties = join_properties(properties, real)
        waits_ms = self.waits_ms(facts, sender.born_at_ms)
        if topic.name.startswith(DLQ_PREFIX):
            # A dead letter was sent as a retry, but a retry's delay does not apply to it.
            waits_ms = 0
        return SentMessage(
            topic=topic.name,
            queue_id=queue_id,
            body=body,
            properties=join_properties(properties, self._added),
            tags=facts.tags,
            keys=facts.keys,
            unique_key=unique_key,
            flag=sender.flag,
            sys_flag=sender.sys_flag,
            born_at_ms=sender.born_at_ms,
            born_host=sender.born_host,
            reconsume_times=sender.reconsume_times,
            deliver_after_ms=waits_ms if is_half else 0,
            deliver_at_ms=now_ms + waits_ms if waits_ms and not is_half else 0,
        )


def type_of(facts: SentFacts, properties: bytes, *, is_half: bool) -> MessageType:
    """Return the type of a message, by what its sender said of it."""
    if is_half:
        return MessageType.TRANSACTION
    if facts.delay_level or facts.deliver_after_ms or facts.deliver_at_ms:
        return MessageType.DELAY
    return MessageType.FIFO if SHARDING_MARK in properties else MessageType.NORMAL
