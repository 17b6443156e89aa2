"""Small numbers for long names: queues; ``origins.py`` has where half messages come from.

Rows and records hold the number; the name is written to the log before its first use.  A number is
never used again: that of a queue goes with the topic that it was made for.
"""

from __future__ import annotations

from escrowmq.transaction.origins import Origins
from escrowmq.transaction.records import NamedQueue

DELETED_MAX = 10_000
"""Deleted queues whose names are remembered, for what is still undecided in them."""


class Names:
    """Every queue that is there, and every origin that the log has named."""

    def __init__(self) -> None:
        #: By number: the queues of topics that were not deleted.
        self.queues: dict[int, NamedQueue] = {}
        #: The next number of a queue.
        self.queues_end = 0
        self.origins = Origins()
        #: Topic -> queue id -> number.
        self.queues_of: dict[str, dict[int, int]] = {}
        #: Deleted queues with messages that were not visible yet.
        self.deleted: dict[int, NamedQueue] = {}

    def number_of(self, topic: str, queue_id: int) -> int | None:
        """The queue's number, if it has one."""
        return self.queues_of.get(topic, {}).get(queue_id)

    def named(self, number: int) -> NamedQueue:
        """The queue of this number; without a topic if it was deleted and nobody knows of which."""
        known = self.queues.get(number) or self.deleted.get(number)
        return NamedQueue(number, "", 0) if known is None else known

    @property
    def lacks_queues(self) -> bool:
        """Whether there are numbers of deleted queues."""
        return len(self.queues) < self.queues_end

    def queue_of(
        self,
        topic: str,
        queue_id: int,
        new: dict[tuple[str, int], NamedQueue],
        incarnation: int = 0,
    ) -> int:
        """The queue's number; a queue without one gets the next, and is noted in ``new``."""
        known = self.number_of(topic, queue_id)
        if known is not None:
            return known
        named = new.get((topic, queue_id))
        if named is None:
            named = NamedQueue(self.queues_end + len(new), topic, queue_id, incarnation)
            new[(topic, queue_id)] = named
        return named.id

    def apply(self, record: NamedQueue) -> None:
        """Take a name from the log; one that is known, or deleted, already changes nothing."""
        if record.id == self.queues_end:
            self.queues_end += 1
            self.add(record)

    def add(self, named: NamedQueue) -> None:
        """Know a queue."""
        self.queues[named.id] = named
        self.queues_of.setdefault(named.topic, {})[named.queue_id] = named.id

    def remove(self, number: int, *, is_held: bool) -> None:
        """Forget a queue; its name stays while something that is not visible yet is in it."""
        named = self.queues.pop(number, None)
        if named is None:
            return
        numbers = self.queues_of[named.topic]
        del numbers[named.queue_id]
        if not numbers:
            del self.queues_of[named.topic]
        if is_held:
            if len(self.deleted) >= DELETED_MAX:
                del self.deleted[next(iter(self.deleted))]
            self.deleted[number] = named
