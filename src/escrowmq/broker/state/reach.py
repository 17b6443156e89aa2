"""Detects consumer offsets that come from another history of the store.

A restored broker assigns queue offsets again that another history has used. RocketMQ's clients do
not name their history, so the broker tells it from the offset: an offset above the queue's end at
the broker's start comes from another history, unless the broker has given or told it since, or the
group has committed it. Such a consumer continues at that end, where the new messages begin.

Only a store in its first epoch has no other history. RocketMQ's tools may read at any offset.

A topic that was deleted and created again is like a fork at offset 0: consumers of the deleted one
may still run with its offsets. The broker accepts only offsets that it has given or told, or that
were committed, in this incarnation. Other consumers continue at their group's offset in this
incarnation, or at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from escrowmq.broker.state.groups import is_of_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.memory.catalog import KeptTopic

PAIRS_MAX = 100_000
"""Most pairs of group and topic that are remembered; the offsets of others are accepted."""

TOLD_MAX = 10_000
"""Most queues for which a connection remembers the highest offset it was told."""

Reached = dict[int, int]
"""By queue id, the highest offset that a group has come to."""


class OffsetsTold(Protocol):
    """A client, with the offsets that the broker told it."""

    #: The highest offset, by topic, queue and incarnation of the topic.
    told: dict[tuple[str, int, int], int]


class Reach:
    """Offsets that the broker delivered to consumers, or answered to them, since its start."""

    def __init__(
        self, store: Store, meta: Meta, broadcasts: Callable[[str], bool] = lambda _: False
    ) -> None:
        #: Whether members of a group keep their own offsets.
        self._broadcasts = broadcasts
        self._meta = meta
        self._catalog = store.catalog
        #: Whether the store is in its first epoch and has no other history.
        self._is_first = store.core.lineage.epochs[-1].log_offset == 0
        #: The ends of queues at the broker's start; queues that came later began at 0.
        self._bases = {(one.topic, one.queue_id): one.end for one in store.queues.values()}
        self._reached: dict[tuple[str, str], Reached] = {}

    def of(self, group: str, topic: str) -> Reached:
        """Return the mapping that holds how far a group has come."""
        key = (group, topic)
        reached = self._reached.get(key)
        if reached is None:
            reached = {}
            if len(self._reached) < PAIRS_MAX:
                self._reached[key] = reached
        return reached

    def base_if_foreign(
        self, client: OffsetsTold, group: str, topic: str, queue_id: int, offset: int
    ) -> int | None:
        """Return where a consumer from another history continues; None for one of this history."""
        kept = self._catalog.topics.get(topic)
        is_remade = kept is not None and kept.is_remade
        if self._is_first and not is_remade:
            return None
        base = self._bases.get((topic, queue_id), 0)
        committed = self._meta.offsets.get((group, topic, queue_id), 0)
        if is_remade and not self._broadcasts(group):
            # Even an offset below the end at the start may be of the deleted topic.
            base = 0
        if offset <= base:
            return None
        reached = self._reached.get((group, topic), {})
        known = max(
            reached.get(queue_id, 0),
            client.told.get((topic, queue_id, born_of(kept)), 0),
            committed,
        )
        if offset <= known or is_of_tools(group):
            return None
        is_full = not reached and len(self._reached) >= PAIRS_MAX
        if is_full:
            return None
        return committed if is_remade else base

    def forget(self, *, topic: str = "", group: str = "") -> None:
        """Forget a deleted topic or group."""
        for key in [
            key for key in self._reached if group in ("", key[0]) and topic in ("", key[1])
        ]:
            del self._reached[key]
        if topic:
            for queue in [queue for queue in self._bases if queue[0] == topic]:
                del self._bases[queue]

    def tell(self, client: OffsetsTold, topic: str, queue_id: int, offset: int) -> None:
        """Note that a client is told an offset, so that it may use it."""
        told = client.told
        if len(told) >= TOLD_MAX:
            told.clear()
        key = (topic, queue_id, born_of(self._catalog.topics.get(topic)))
        told[key] = max(offset, told.get(key, 0))


def born_of(kept: KeptTopic | None) -> int:
    """Return the number of a topic's incarnation; 0 for a topic that is not in the catalog."""
    return 0 if kept is None else kept.born


def note(reached: Reached, queue_id: int, offset: int) -> None:
    """Note that a group has come to this offset."""
    if offset > reached.get(queue_id, 0):
        reached[queue_id] = offset
