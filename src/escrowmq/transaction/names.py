"""Small numbers for long names: queues; ``origins.py`` has where half messages come from.

Rows and records hold the number; the name is written to the log before its first use.
"""

from __future__ import annotations

from escrowmq.transaction.origins import Origins
from escrowmq.transaction.records import NamedQueue


class Names:
    """Every queue and origin that the log has named."""

    def __init__(self) -> None:
        self.queues: list[NamedQueue] = []
        self.origins = Origins()
        #: Topic -> queue id -> number.
        self.queues_of: dict[str, dict[int, int]] = {}

    def number_of(self, topic: str, queue_id: int) -> int | None:
        """The queue's number, if it has one."""
        return self.queues_of.get(topic, {}).get(queue_id)

    def queue_of(self, topic: str, queue_id: int, new: dict[tuple[str, int], NamedQueue]) -> int:
        """The queue's number; a queue without one gets the next, and is noted in ``new``."""
        known = self.number_of(topic, queue_id)
        if known is not None:
            return known
        named = new.get((topic, queue_id))
        if named is None:
            named = NamedQueue(len(self.queues) + len(new), topic, queue_id)
            new[(topic, queue_id)] = named
        return named.id

    def apply(self, record: NamedQueue) -> None:
        """Take a name from the log; one that is known already changes nothing."""
        if record.id == len(self.queues):
            self.queues.append(record)
            self.queues_of.setdefault(record.topic, {})[record.queue_id] = record.id
