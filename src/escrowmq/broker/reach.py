"""How far a consumer can have come in this history of the store.

A broker that was restored gives queue offsets again that another history has used.  RocketMQ's
clients say no history, so it is told by the offset: whatever is above a queue's end at the broker's
start, and was neither given to the group nor told since, comes from another history.  Such a
consumer goes on at that end, where the new messages begin.

Only a store in its first epoch has no other history.  Tools of RocketMQ's look wherever they like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.groups import is_of_tools

if TYPE_CHECKING:
    from escrowmq.broker.connection import Connection
    from escrowmq.store.meta import Meta
    from escrowmq.store.store import Store

PAIRS_MAX = 100_000
"""Pairs of group and topic that are remembered; a group beyond them is believed."""

TOLD_MAX = 10_000
"""Queues whose end a connection remembers to have asked for."""

Reached = dict[int, int]
"""By queue, the highest offset that a group has come to."""


class Reach:
    """What consumers were given and told since the start."""

    def __init__(self, store: Store, meta: Meta) -> None:
        self._meta = meta
        #: There is no other history.
        self._is_first = store.core.lineage.epochs[-1].log_offset == 0
        #: The ends of queues at the start; those that came later began at 0.
        self._bases = {(one.topic, one.queue_id): one.end for one in store.queues.values()}
        self._reached: dict[tuple[str, str], Reached] = {}

    def of(self, group: str, topic: str) -> Reached:
        """Where to note how far a group is."""
        key = (group, topic)
        reached = self._reached.get(key)
        if reached is None:
            reached = {}
            if len(self._reached) < PAIRS_MAX:
                self._reached[key] = reached
        return reached

    def base_if_foreign(
        self, connection: Connection, group: str, topic: str, queue_id: int, offset: int
    ) -> int | None:
        """Where somebody goes on who comes from another history; None for one of this history."""
        if self._is_first:
            return None
        queue = (topic, queue_id)
        base = self._bases.get(queue, 0)
        if offset <= base:
            return None
        reached = self._reached.get((group, topic), {})
        known = max(
            reached.get(queue_id, 0),
            connection.told.get(queue, 0),
            self._meta.offsets.get((group, topic, queue_id), 0),
        )
        if offset <= known or is_of_tools(group):
            return None
        is_full = not reached and len(self._reached) >= PAIRS_MAX
        return None if is_full else base

    def tell(self, connection: Connection, topic: str, queue_id: int, offset: int) -> None:
        """Somebody is told an offset, and may go there."""
        told = connection.told
        if len(told) >= TOLD_MAX:
            told.clear()
        key = (topic, queue_id)
        told[key] = max(offset, told.get(key, 0))


def note(reached: Reached, queue_id: int, offset: int) -> None:
    """A group has come to this offset."""
    if offset > reached.get(queue_id, 0):
        reached[queue_id] = offset
