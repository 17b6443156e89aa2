"""Topics: which exist, which may be read or sent to, and how they are created.

The owner's topics are in the store's catalog. Others always exist, as in RocketMQ: the template for
topics that are created by sending, and the system topics, to which clients may not send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.state.create_first import CreateFirst
from escrowmq.model.catalog import INHERIT, READ, READ_WRITE, WRITE, MessageType, Topic
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DEFAULT_TOPIC, DLQ_PREFIX, OWN_PREFIXES, RETRY_PREFIX
from escrowmq.protocol.message.delay_levels import DelayLevels
from escrowmq.protocol.message.limits import validate_queue
from escrowmq.protocol.message.message_views import SCHEDULE_TOPIC, SYSTEM_TOPICS
from escrowmq.transaction.commands import PutTopic, RemoveTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from escrowmq.broker.config import TopicsConfig
    from escrowmq.transaction.memory.catalog import Catalog


QUEUES_MAX = 2**31 - 1
"""Gives a new topic as many queues as its template topic has."""


def retry_topic(group: str) -> str:
    """Return the topic with the retries of this consumer group."""
    return f"{RETRY_PREFIX}{group}"


def dlq_topic(group: str) -> str:
    """Return the topic with the dead letters of this consumer group."""
    return f"{DLQ_PREFIX}{group}"


def _system_topic(name: str, queue_count: int = 1, perm: int = READ_WRITE) -> Topic:
    return Topic(
        name=name,
        read_queue_count=queue_count,
        write_queue_count=queue_count,
        perm=perm,
        message_type=MessageType.UNSPECIFIED,
    )


class Topics:
    """The owner's topics and the system topics."""

    def __init__(self, catalog: Catalog, config: TopicsConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._system = {name: _system_topic(name) for name in sorted(SYSTEM_TOPICS)}
        self.delay_levels = DelayLevels.parse(config.delay_levels)
        self._system[SCHEDULE_TOPIC] = _system_topic(SCHEDULE_TOPIC, self.delay_levels.count)
        if config.auto_create:
            self._system[DEFAULT_TOPIC] = _system_topic(
                DEFAULT_TOPIC, config.queue_count, READ_WRITE | INHERIT
            )

    def get(self, name: str) -> Topic | None:
        """Return the topic, or None."""
        return self._catalog.topic(name) or self._system.get(name)

    def all(self) -> Iterator[Topic]:
        """Yield every topic, system topics first."""
        yield from self._system.values()
        yield from (kept.topic for kept in self._catalog.topics.values())

    def named(self, name: str) -> Topic:
        """Return the topic; refuse an unknown one."""
        topic = self.get(name)
        if topic is None:
            raise RequestRefused("topic_unknown", "create the topic first", topic=name)
        return topic

    def to_read(self, name: str, queue_id: int) -> Topic:
        """Return the topic of a queue that a client wants to read."""
        topic = self.named(name)
        if not topic.perm & READ:
            raise RequestRefused(
                "topic_not_readable", "the topic's permissions forbid reading", topic=name
            )
        _refuse_queue(topic, queue_id, topic.read_queue_count)
        return topic

    def to_send(
        self,
        name: str,
        queue_id: int,
        *,
        template: str,
        queue_count: int,
        now_ms: int,
        message_type: MessageType = MessageType.NORMAL,
    ) -> Topic:
        """Return the topic of a queue that a client sends to.

        Raises ``CreateFirst`` if the topic must first be created from the template, and may be; it
        then gets this message type.
        """
        if name in SYSTEM_TOPICS:
            raise RequestRefused("topic_of_system", "send to a topic of your own", topic=name)
        topic = self.get(name)
        if topic is None:
            raise CreateFirst(
                self.put(
                    self._like(name, template, queue_count, now_ms, message_type),
                    is_only_made=True,
                )
            )
        if not topic.perm & WRITE:
            raise RequestRefused(
                "topic_not_writable", "the topic's permissions forbid writing", topic=name
            )
        # Below 0, the sender leaves the choice to the broker.
        queue_count = max(topic.read_queue_count, topic.write_queue_count)
        _refuse_queue(topic, max(queue_id, 0), queue_count)
        return topic

    def if_sent_to(self, name: str) -> Topic:
        """Return a topic; if there is none, the one that a first message of any type creates."""
        known = self.get(name)
        if known is not None:
            return known
        return self._like(name, DEFAULT_TOPIC, QUEUES_MAX, 0, MessageType.UNSPECIFIED)

    def _like(
        self, name: str, template: str, queue_count: int, now_ms: int, message_type: MessageType
    ) -> Topic:
        """Return a topic as a message creates it; refuse one that may not be created."""
        validate_queue(name, 0)
        like = self.get(template) if self._config.auto_create else None
        if like is None or not like.perm & INHERIT:
            raise RequestRefused("topic_unknown", "create the topic first", topic=name)
        count = max(1, min(queue_count, like.write_queue_count))
        return Topic(
            name=name,
            read_queue_count=count,
            write_queue_count=count,
            perm=like.perm & ~INHERIT,
            message_type=message_type,
            created_at_ms=now_ms,
        )

    def for_group(self, name: str, queue_count: int, now_ms: int) -> Topic:
        """Return the topic that the broker keeps for a consumer group: retries or dead letters.

        Raises ``CreateFirst`` if it does not exist or has too few queues.
        """
        known = self.get(name)
        if known is not None and known.read_queue_count >= queue_count:
            return known
        topic = msgspec.structs.replace(
            known or Topic(name=name, created_at_ms=now_ms),
            read_queue_count=queue_count,
            write_queue_count=queue_count,
        )
        raise CreateFirst(self.put(topic))

    def put(self, topic: Topic, *, is_only_made: bool = False) -> PutTopic:
        """Return the command that creates or changes the topic."""
        validate_queue(topic.name, 0)
        if topic.name in self._system:
            raise RequestRefused("topic_of_system", "choose another name", topic=topic.name)
        return PutTopic(topic=topic, is_only_made=is_only_made)

    def may_be_made_again(self, name: str) -> bool:
        """Return whether a message would create this topic if it did not exist."""
        return self._config.auto_create or name.startswith(OWN_PREFIXES)

    def remove(self, name: str, *, by: str, is_forced: bool = False) -> RemoveTopic:
        """Return the command that removes the topic with everything in it."""
        if name in self._system:
            raise RequestRefused("topic_of_system", "it cannot be removed", topic=name)
        return RemoveTopic(name=name, by=by, is_forced=is_forced)

    @property
    def system(self) -> Collection[str]:
        """Names of the topics that always exist."""
        return self._system.keys()

    def type_from_first(self, sent: MessageType) -> MessageType:
        """Return the type of a topic that the first message of a remoting client creates.

        As in RocketMQ, that is an ordinary topic, unless types are enforced for these clients.
        """
        return sent if self._config.enforce_type else MessageType.NORMAL

    def check_type(self, topic: Topic, sent: MessageType) -> None:
        """Refuse a message that is not of its topic's type, if ``enforce_type`` is on."""
        if self._config.enforce_type:
            require_type(topic, sent)


def require_type(topic: Topic, sent: MessageType) -> None:
    """Refuse a message that is not of its topic's type; topics of groups take any."""
    if topic.name.startswith(OWN_PREFIXES):
        return
    if topic.message_type not in (sent, MessageType.MIXED, MessageType.UNSPECIFIED):
        raise RequestRefused(
            "message_type_wrong",
            "send it to a topic of its type, or change the topic's",
            topic=topic.name,
            topic_type=topic.message_type.value,
            message_type=sent.value,
        )


def _refuse_queue(topic: Topic, queue_id: int, queue_count: int) -> None:
    if not 0 <= queue_id < queue_count:
        raise RequestRefused(
            "queue_id_illegal",
            f"the topic has {queue_count} queues",
            topic=topic.name,
            queue_id=queue_id,
            max=queue_count - 1,
        )
