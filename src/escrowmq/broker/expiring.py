"""Expires unused names in the background, a few at a time.

This module finds candidates, and the core decides by its own time which of them may expire. The
broker first records all uses since the last note, so that no name in use expires.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from escrowmq.model.event_log import event_log
from escrowmq.transaction.expiring import may_expire, noted_since_ms, unused_since_ms
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    ExpireTopic,
    NoteUses,
)
from escrowmq.transaction.records import OriginsExpired, QueriesExpired

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.transaction.commands import Command, Decision

log = event_log(__name__)

T = TypeVar("T")

LOOKED_AT_MAX = 4_096
"""Names to examine before other tasks run; this takes less than a millisecond."""
KINDS = ("origins", "queries", "groups", "topics")
EXPIRED_MAX = 1_024
"""Names in one command."""


class Expiring:
    """Expires unused names. Use it from one event loop only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Groups and topics that clients used since the last note.
        self._groups: set[str] = set()
        self._topics: set[str] = set()
        #: Queue ends at the last look, by queue number; a new message is a use of the topic.
        self._ends: dict[int, int] = dict(broker.store.core.queue_ends)
        #: Expired names since the start, by kind; each starts at 0, so that the first is a change.
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    def note(self, group: str, topic: str) -> None:
        """Note that a consumer group reads a topic or reports its offset."""
        self._groups.add(group)
        self._topics.add(topic)

    def note_topics(self, topics: Iterable[str]) -> None:
        """Note that clients ask for these existing topics."""
        self._topics.update(topics)

    async def run(self) -> None:
        """Expire all names that are unused now, and check how near the limits are."""
        await self._note_uses()
        if self.may_delete:
            await self._expire_origins()
            await self._expire_queries()
            await self._expire_groups()
            await self._expire_topics()
        self._broker.capacities.look()

    @property
    def may_delete(self) -> bool:
        """Whether the clock is certain enough to expire names by age."""
        return self._broker.clock.may_delete

    @property
    def since_ms(self) -> int:
        """Names that were last used before this time may expire."""
        return unused_since_ms(self._broker.store.core, self._now_ms)

    @property
    def _now_ms(self) -> int:
        broker = self._broker
        return broker.clock.deletion_now_ms(broker.store.core.limits.unused_expire_ms)

    async def _expire_origins(self) -> None:
        origins, since_ms = self._broker.store.core.names.origins, self.since_ms
        unused: list[int] = []
        for numbers in sliced(list(origins.named), LOOKED_AT_MAX):
            unused += [number for number in numbers if origins.is_unused(number, since_ms)]
            await asyncio.sleep(0)
        for numbers in sliced(unused, EXPIRED_MAX):
            decision = await self._submit(ExpireOrigins(numbers=numbers))
            for record in decision.records:
                if isinstance(record, OriginsExpired):
                    self._count("origins", len(record.numbers))

    async def _expire_queries(self) -> None:
        batches, since_ms = self._broker.store.core.batches, self.since_ms
        unused: list[tuple[str, str]] = []
        for app_ids in sliced(list(batches.apps), LOOKED_AT_MAX):
            unused += batches.unused(app_ids, since_ms)
            await asyncio.sleep(0)
        for queries in sliced(unused, EXPIRED_MAX):
            decision = await self._submit(ExpireQueries(queries=queries))
            for record in decision.records:
                if isinstance(record, QueriesExpired):
                    self._count("queries", len(record.queries))

    # Consumer groups and topics.

    async def _note_uses(self) -> None:
        groups, self._groups = self._groups, set()
        topics, self._topics = self._topics, set()
        clients = self._broker.clients
        for name in clients.consumer_groups():
            online = clients.consumers(name)
            if online is not None:
                groups.add(name)
                topics.update(online.subscriptions)
        core, ends = self._broker.store.core, {}
        for queues in sliced(list(core.names.queues.values()), LOOKED_AT_MAX):
            for named in queues:
                end = ends[named.id] = core.queue_ends.get(named.id, 0)
                if end > self._ends.get(named.id, 0):
                    topics.add(named.topic)
            await asyncio.sleep(0)
        self._ends = ends
        for names in sliced(groups, EXPIRED_MAX):
            await self._submit(NoteUses(groups=names))
        for names in sliced(topics, EXPIRED_MAX):
            await self._submit(NoteUses(topics=names))

    async def _unused(self, uses: dict[str, int]) -> list[str]:
        """Return the names whose last recorded use is old enough for them to expire."""
        since_ms = noted_since_ms(self._broker.store.core, self._now_ms)
        unused: list[str] = []
        for names in sliced(list(uses), LOOKED_AT_MAX):
            unused += [name for name in names if uses.get(name, since_ms) < since_ms]
            await asyncio.sleep(0)
        return unused

    async def _expire_groups(self) -> None:
        broker = self._broker
        if not broker.groups.are_made_by_use:
            # An expired group could not come back by itself.
            return
        known = broker.store.core.catalog.groups
        for name in await self._unused(broker.store.core.uses.groups):
            # One at a time: a group may have offsets in thousands of queues.
            if name not in known or not known[name].is_made_by_use or await self._has_backlog(name):
                continue
            if broker.clients.consumers(name) is None:
                decision = await self._submit(ExpireGroups(names=(name,)))
                self._count("groups", len(decision.records))

    async def _has_backlog(self, group: str) -> bool:
        """Whether the store still has the group's next message in any of its queues."""
        meta, queues = self._broker.meta, self._broker.queues
        for keys in sliced(list(meta.index.of_group(group)), EXPIRED_MAX):
            for key in keys:
                offset, queue = meta.offsets.get(key, -1), queues.get(*key[1:])
                if queue is not None and queue.start <= offset < queue.end:
                    return True
            await asyncio.sleep(0)
        return False

    async def _expire_topics(self) -> None:
        broker = self._broker
        core = broker.store.core
        for name in await self._unused(core.uses.topics):
            await asyncio.sleep(0)
            kept = core.catalog.topics.get(name)
            if kept is None or not (may_expire(kept) and broker.topics.may_be_made_again(name)):
                continue
            numbers = core.names.queues_of.get(name, {}).values()
            queues = {number: broker.store.queues[number] for number in numbers}
            if all(queue.start == queue.end for queue in queues.values()):
                ends = {number: queue.end for number, queue in queues.items()}
                decision = await self._submit(ExpireTopic(name=name, queue_ends=ends))
                self._count("topics", len(decision.records))

    async def _submit(self, command: Command) -> Decision:
        return await self._broker.writer.submit(command)

    def _count(self, kind: str, count: int) -> None:
        if not count:
            return
        self.counts[kind] += count
        log.info("names_expired", extra={"kind": kind, "count": count})


def sliced(values: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the values in slices of this size."""
    left = iter(values)
    while part := tuple(islice(left, size)):
        yield part
