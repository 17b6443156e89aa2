"""How far consumer groups have read, for the requests of all protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.state.expiring import Uses
    from escrowmq.broker.state.queues import Queues
    from escrowmq.broker.state.reach import OffsetsTold, Reach
    from escrowmq.store.meta.meta import Meta, OffsetKey
    from escrowmq.transaction.memory.catalog import Catalog

RECENT_BYTES = 1024 * 1024 * 1024
"""A group that has never read a queue starts at 0 if the queue's first message is at most this many
bytes behind the end of the log."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Reads and sets the offsets of consumer groups."""

    catalog: Catalog
    meta: Meta
    queues: Queues
    reach: Reach
    uses: Uses
    #: Whether a group reads a queue by pop.
    is_popped: Callable[[str, str, int], bool]

    def known(self, key: OffsetKey, *, zero_if_recent: bool) -> int | None:
        """Return how far a group has read a queue; None if it has never read it."""
        group, topic, queue_id = key
        known = self.meta.offsets.get(key)
        if known is None and zero_if_recent:
            known = 0 if self.queues.is_recent(topic, queue_id, RECENT_BYTES) else None
        if known is None and self.catalog.has_lost_offsets(group):
            # Its offset may be lost. A client that gets no offset starts at the end of the queue.
            queue = self.queues.get(topic, queue_id)
            known = 0 if queue is None else queue.start
        return known

    def report(self, client: OffsetsTold, key: OffsetKey, offset: int) -> None:
        """Set the offset that a group reports; it may also go back."""
        group, topic, _ = key
        self.uses.note(group, topic)
        self.commit(client, key, offset, reset=True)

    def commit(
        self, client: OffsetsTold, key: OffsetKey, offset: int, *, reset: bool = False
    ) -> None:
        """Set the offset of a group, at most to the end of the queue."""
        if self.is_popped(*key):
            # Only acknowledgements move a group that pops.
            return
        queue = self.queues.get(*key[1:])
        end = 0 if queue is None else queue.end
        base = None
        if key[1] not in self.queues.views:
            base = self.reach.base_if_foreign(client, *key, offset)
        if base is not None:
            # Keep the progress that other members have made in this history.
            offset, reset = base, False
        self.meta.set_offset(*key, min(offset, end), reset=reset)
