"""Makes messages from what their senders sent, for all kinds of requests.

The broker stores what the producer sent, and adds a few properties as RocketMQ's brokers do. A
half message keeps its real topic and queue; a bit in the stored layout marks it as a half message.
"""

from __future__ import annotations

import uuid
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.topics import DEFAULT_TOPIC, DLQ_PREFIX, OWN_PREFIXES
from escrowmq.model.message import Message
from escrowmq.protocol.properties import (
    CLUSTER,
    MSG_REGION,
    TRACE_ON,
    UNIQ_KEY,
    format_properties,
    half_properties,
    join_properties,
)
from escrowmq.store.meta import MessageType

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.protocol.sent_facts import SentFacts
    from escrowmq.store.meta import Topic

REGION = "DefaultRegion"
QUEUE_COUNT_ANY = 2**31 - 1
"""Gives a new topic as many queues as its template topic has."""

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

    def __init__(self, broker: Broker) -> None:
        self._topics = broker.topics
        self._clock = broker.clock
        self._turn = count()
        self._added = format_properties(
            {MSG_REGION: REGION, TRACE_ON: "true", CLUSTER: broker.config.cluster}
        )

    def place(
        self,
        name: str,
        queue_id: int,
        now_ms: int,
        *,
        template: str = DEFAULT_TOPIC,
        queue_count: int = QUEUE_COUNT_ANY,
        turn: int | None = None,
    ) -> tuple[Topic, int]:
        """Return the topic and queue of a message; for a queue below 0 the broker takes turns.

        A caller that may send the same message again passes ``turn``, to get the same queue.
        """
        topics = self._topics
        if name.startswith(OWN_PREFIXES):
            topics.for_group(name, 1, now_ms)
        topic = topics.to_send(
            name, queue_id, template=template, queue_count=queue_count, now_ms=now_ms
        )
        if queue_id < 0:
            if turn is None:
                turn = next(self._turn)
            queue_id = turn % max(topic.write_queue_count, 1)
        return topic, queue_id

    def waits_ms(self, facts: SentFacts, born_at_ms: int) -> int:
        """Return how long a message waits before it is visible."""
        waits_ms = self._topics.delay_levels.delay_ms(facts.delay_level) or facts.deliver_after_ms
        if waits_ms or not facts.deliver_at_ms:
            return waits_ms
        return self._clock.wait_ms(facts.deliver_at_ms, born_at_ms)

    def check_type(self, topic: Topic, sent: MessageType) -> None:
        """Refuse a message that does not have its topic's type, if the config asks for that."""
        self._topics.check_type(topic, sent)

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
    ) -> Message:
        """Return the message; a half message without a transaction id uses its unique key."""
        topic, queue_id = place
        self._topics.check_type(topic, _type_of(facts, properties, is_half=is_half))
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
        return Message(
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


def _type_of(facts: SentFacts, properties: bytes, *, is_half: bool) -> MessageType:
    if is_half:
        return MessageType.TRANSACTION
    if facts.delay_level or facts.deliver_after_ms or facts.deliver_at_ms:
        return MessageType.DELAY
    return MessageType.FIFO if SHARDING_MARK in properties else MessageType.NORMAL
