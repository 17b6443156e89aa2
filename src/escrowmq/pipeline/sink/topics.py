"""The topics that a task of the sink writes to, and their queues."""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.model.catalog import INHERIT, WRITE
from escrowmq.model.errors import RequestRefused
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.message.limits import validate_topic
from escrowmq.protocol.native.rows import TopicRow


class SinkTopics:
    """The queue counts of a broker's topics, requested when a topic is first written to."""

    def __init__(self, ask: Callable[[], list[TopicRow]], broker: str = "") -> None:
        self._ask = ask
        #: Names the broker in errors, if there are several.
        self._facts = {"broker": broker} if broker else {}
        self._queue_counts: dict[str, int] = {}

    def queue_count(self, name: str) -> int:
        """The number of queues of a topic. Refuses a topic that cannot be written to."""
        if name not in self._queue_counts:
            self._queue_counts[name] = self._count(name)
        return self._queue_counts[name]

    def _count(self, name: str) -> int:
        validate_topic(name)
        topics = {topic.topic: topic for topic in self._ask()}
        topic = topics.get(name)
        if topic is None:
            # Writing creates it from the template.
            topic = topics.get(DEFAULT_TOPIC)
            if topic is None or not topic.perm & INHERIT:
                raise self._refused("topic_unknown", "create the topic first", name)
        elif topic.is_system:
            raise self._refused("topic_of_system", "write to a topic of your own", name)
        if not topic.perm & WRITE:
            raise self._refused(
                "topic_not_writable", "the topic's permission does not allow writing", name
            )
        return max(topic.write_queue_count, 1)

    def _refused(self, code: str, text: str, name: str) -> RequestRefused:
        return RequestRefused(code, text, topic=name, **self._facts)
