"""Numbers that stand for queues; ``origins.py`` has those that stand for origins.

Rows and records hold the number; the log has the name before its first use. A number is never
reused: a queue's number ends with the topic that it was made for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from escrowmq.transaction.memory.origins import Origins
from escrowmq.transaction.records import NamedQueue

DELETED_MAX = 10_000
"""Deleted queues whose names are kept, because messages in them were not yet visible."""

T = TypeVar("T")


class Names:
    """Every queue that exists, and every known origin."""

    def __init__(self) -> None:
        #: By number: the queues of existing topics.
        self.queues: dict[int, NamedQueue] = {}
        #: The next queue number.
        self.queues_end = 0
        self.origins = Origins()
        #: Topic -> queue id -> number.
        self.queues_of: dict[str, dict[int, int]] = {}
        #: By number: deleted queues with messages that were not yet visible.
        self.deleted: dict[int, NamedQueue] = {}

    def number_of(self, topic: str, queue_id: int) -> int | None:
        """The queue's number, or None if it has none."""
        return self.queues_of.get(topic, {}).get(queue_id)

    def named(self, number: int) -> NamedQueue:
        """The queue with this number; without a topic if it was deleted and its name forgotten."""
        known = self.queues.get(number) or self.deleted.get(number)
        return NamedQueue(number, "", 0) if known is None else known

    @property
    def lacks_queues(self) -> bool:
        """Whether any queue was deleted."""
        return len(self.queues) < self.queues_end

    def queue_of(
        self,
        topic: str,
        queue_id: int,
        new: dict[tuple[str, int], NamedQueue],
        incarnation: int = 0,
    ) -> int:
        """The queue's number; a queue without one gets the next number and is added to ``new``."""
        known = self.number_of(topic, queue_id)
        if known is not None:
            return known
        named = new.get((topic, queue_id))
        if named is None:
            named = NamedQueue(self.queues_end + len(new), topic, queue_id, incarnation)
            new[(topic, queue_id)] = named
        return named.id

    def apply(self, record: NamedQueue) -> None:
        """Apply a name from the log; a number that was given before changes nothing."""
        if record.id == self.queues_end:
            self.queues_end += 1
            self.add(record)

    def add(self, named: NamedQueue) -> None:
        """Add a queue."""
        self.queues[named.id] = named
        self.queues_of.setdefault(named.topic, {})[named.queue_id] = named.id

    def remove(self, number: int, *, is_held: bool) -> None:
        """Remove a queue; keep its name if it has messages that are not yet visible."""
        named = self.queues.pop(number, None)
        if named is None:
            return
        forget_queue(self.queues_of, named.topic, named.queue_id)
        if is_held:
            if len(self.deleted) >= DELETED_MAX:
                del self.deleted[next(iter(self.deleted))]
            self.deleted[number] = named

    def forget_unless_held(self, held: Collection[int]) -> None:
        """Forget the names of deleted queues, except these, whose messages are not yet visible."""
        self.deleted = {number: named for number, named in self.deleted.items() if number in held}


def forget_queue(queues_of: dict[str, dict[int, T]], topic: str, queue_id: int) -> None:
    """Remove one queue of a topic, and the topic with its last queue."""
    of_topic = queues_of[topic]
    del of_topic[queue_id]
    if not of_topic:
        del queues_of[topic]
