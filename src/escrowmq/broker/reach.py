"""How far a consumer can have come in this history of the store.

A broker that was restored gives queue offsets again that another history has used.  RocketMQ's
clients say no history, so it is told by the offset: whatever is above a queue's end at the broker's
start, and was neither given to the group nor told since, comes from another history.  Such a
consumer goes on at that end, where the new messages begin.

Only a store in its first epoch has no other history.  Tools of RocketMQ's look wherever they like.

A topic that was deleted and made again is like a fork at offset 0: consumers of the deleted one may
still run, with offsets of its queues.  Of them nobody is believed who was not given or told it in
this incarnation; they go on where their group has come to in it, or at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.groups import is_of_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.connection import Connection
    from escrowmq.store.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.catalog import KeptTopic

PAIRS_MAX = 100_000
"""Pairs of group and topic that are remembered; a group beyond them is believed."""

TOLD_MAX = 10_000
"""Queues whose end a connection remembers to have asked for."""

Reached = dict[int, int]
"""By queue, the highest offset that a group has come to."""


class Reach:
    """What consumers were given and told since the start."""

    def __init__(
        self, store: Store, meta: Meta, broadcasts: Callable[[str], bool] = lambda _: False
    ) -> None:
        #: Whether members of a group keep their offsets themselves.
        self._broadcasts = broadcasts
        self._meta = meta
        self._catalog = store.catalog
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
        kept = self._catalog.topics.get(topic)
        is_remade = kept is not None and kept.is_remade
        if self._is_first and not is_remade:
            return None
        base = self._bases.get((topic, queue_id), 0)
        committed = self._meta.offsets.get((group, topic, queue_id), 0)
        if is_remade and not self._broadcasts(group):
            # An offset from before the start may be of the deleted one, however long this one is.
            base = 0
        if offset <= base:
            return None
        reached = self._reached.get((group, topic), {})
        known = max(
            reached.get(queue_id, 0),
            connection.told.get((topic, queue_id, born_of(kept)), 0),
            committed,
        )
        if offset <= known or is_of_tools(group):
            return None
        is_full = not reached and len(self._reached) >= PAIRS_MAX
        if is_full:
            return None
        return committed if is_remade else base

    def forget(self, *, topic: str = "", group: str = "") -> None:
        """A topic or a group is gone."""
        for key in [
            key for key in self._reached if group in ("", key[0]) and topic in ("", key[1])
        ]:
            del self._reached[key]
        if topic:
            for queue in [queue for queue in self._bases if queue[0] == topic]:
                del self._bases[queue]

    def tell(self, connection: Connection, topic: str, queue_id: int, offset: int) -> None:
        """Somebody is told an offset, and may go there."""
        told = connection.told
        if len(told) >= TOLD_MAX:
            told.clear()
        key = (topic, queue_id, born_of(self._catalog.topics.get(topic)))
        told[key] = max(offset, told.get(key, 0))


def born_of(kept: KeptTopic | None) -> int:
    """Which incarnation of a topic it is."""
    return 0 if kept is None else kept.born


def note(reached: Reached, queue_id: int, offset: int) -> None:
    """A group has come to this offset."""
    if offset > reached.get(queue_id, 0):
        reached[queue_id] = offset
