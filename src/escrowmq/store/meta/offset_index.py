"""Index of the topics in which each consumer group has offsets: far fewer pairs than offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from escrowmq.store.meta.meta import OffsetKey


class OffsetIndex:
    """Finds the offsets of a group or of a topic without scanning all offsets."""

    def __init__(self, offsets: Mapping[OffsetKey, int]) -> None:
        self._offsets = offsets
        #: Group -> topic -> the highest queue id.
        self._queues: dict[str, dict[str, int]] = {}
        for key in offsets:
            self.add(key)

    def add(self, key: OffsetKey) -> None:
        """Add the key of an offset."""
        group, topic, queue_id = key
        topics = self._queues.setdefault(group, {})
        topics[topic] = max(queue_id, topics.get(topic, 0))

    def of_group(self, group: str) -> Iterator[OffsetKey]:
        """Yield the keys of a group's offsets."""
        for topic, highest in self._queues.get(group, {}).items():
            yield from self._known(group, topic, highest)

    def of_topic(self, topic: str) -> Iterator[OffsetKey]:
        """Yield the keys of all offsets in a topic."""
        for group, topics in self._queues.items():
            yield from self._known(group, topic, topics.get(topic, -1))

    def _known(self, group: str, topic: str, highest: int) -> Iterator[OffsetKey]:
        for queue_id in range(highest + 1):
            key = (group, topic, queue_id)
            if key in self._offsets:
                yield key

    def taken(self, *, group: str = "", topic: str = "") -> list[OffsetKey]:
        """Remove and return the keys of a group's offsets, or of all offsets in a topic."""
        keys = [*self.of_group(group), *self.of_topic(topic)]
        self._queues.pop(group, None)
        for topics in self._queues.values() if topic else ():
            topics.pop(topic, None)
        return keys
