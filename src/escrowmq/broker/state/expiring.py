"""Expires unused names in the background, a few at a time.

This module finds candidates, and the core decides by its own time which of them may expire. The
broker first records all uses since the last note, so that no name in use expires.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from escrowmq.model.event_log import event_log
from escrowmq.transaction.commands import Command
from escrowmq.transaction.decisions.expiring import may_expire, noted_since_ms, unused_since_ms
from escrowmq.transaction.expiry_commands import (
    ExpireGroups,
    ExpireOrigins,
    ExpireQueries,
    ExpireTopic,
    NoteUses,
)
from escrowmq.transaction.records import OriginsExpired, QueriesExpired, Record

if TYPE_CHECKING:
    from escrowmq.broker.state.client_links import ClientLink
    from escrowmq.broker.state.clients import Clients
    from escrowmq.broker.state.groups import Groups
    from escrowmq.broker.state.queues import Queues
    from escrowmq.broker.state.topics import Topics
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.writer import Writer
    from escrowmq.store.meta.meta import Meta
    from escrowmq.store.store import Store
    from escrowmq.transaction.core import Transactions

log = event_log(__name__)

T = TypeVar("T")
U = TypeVar("U")

KINDS = ("origins", "queries", "groups", "topics")
EXPIRED_MAX = 1_024
"""Names in one command."""
LOOKED_AT_MAX = 4_096
"""Names to examine before other tasks run; this takes less than a millisecond."""


class Uses:
    """Groups and topics in use. Use it from one event loop only."""

    def __init__(self, *, core: Transactions, clients: Clients[ClientLink]) -> None:
        self._core = core
        self._clients = clients
        #: Groups and topics that clients used since the last ``take``.
        self._groups: set[str] = set()
        self._topics: set[str] = set()
        #: Queue ends at the last look, by queue number; a new message is a use of the topic.
        self._ends: dict[int, int] = dict(core.queue_ends)

    def note(self, group: str, topic: str) -> None:
        """Note that a consumer group reads a topic or reports its offset."""
        self._groups.add(group)
        self._topics.add(topic)

    def note_topics(self, topics: Iterable[str]) -> None:
        """Note that clients ask for these existing topics."""
        self._topics.update(topics)

    async def take(self) -> tuple[set[str], set[str]]:
        """Return the groups and topics that were used since the last call."""
        groups, self._groups = self._groups, set()
        topics, self._topics = self._topics, set()
        for online in self._clients.online_groups():
            groups.add(online.said.group)
            topics.update(online.subscriptions)
        core, ends = self._core, {}
        for queues in sliced(list(core.names.queues.values()), LOOKED_AT_MAX):
            for named in queues:
                end = ends[named.id] = core.queue_ends.get(named.id, 0)
                if end > self._ends.get(named.id, 0):
                    topics.add(named.topic)
            await asyncio.sleep(0)
        self._ends = ends
        return groups, topics

    def is_online(self, group: str) -> bool:
        """Return whether a consumer of the group is online."""
        return self._clients.consumers(group) is not None


def sliced(values: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """Yield the values in slices of this size."""
    left = iter(values)
    while part := tuple(islice(left, size)):
        yield part


@dataclass(frozen=True, slots=True)
class Expiring:
    """Expires unused names. Use it from one event loop only."""

    uses: Uses
    store: Store
    writer: Writer
    clock: BrokerClock
    topics: Topics
    groups: Groups
    meta: Meta
    queues: Queues
    #: Expired names since the start, by kind; each starts at 0, so that the first is a change.
    counts: Counter[str] = field(
        default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)), init=False
    )

    async def run(self) -> None:
        """Expire all names that are unused now."""
        await self._note_uses()
        if self.clock.may_delete:
            await self._expire_origins()
            await self._expire_queries()
            await self._expire_groups()
            await self._expire_topics()

    @property
    def since_ms(self) -> int:
        """Names that were last used before this time may expire."""
        return unused_since_ms(self.store.core, self._now_ms)

    @property
    def _now_ms(self) -> int:
        return self.clock.deletion_now_ms(self.store.core.limits.unused_expire_ms)

    async def _expire_origins(self) -> None:
        origins, since_ms = self.store.core.names.origins, self.since_ms
        unused = await _found(
            origins.named,
            lambda numbers: [one for one in numbers if origins.is_unused(one, since_ms)],
        )
        for numbers in sliced(unused, EXPIRED_MAX):
            await self._expire("origins", ExpireOrigins(numbers=numbers))

    async def _expire_queries(self) -> None:
        batches, since_ms = self.store.core.batches, self.since_ms
        unused = await _found(batches.apps, lambda app_ids: batches.unused(app_ids, since_ms))
        for queries in sliced(unused, EXPIRED_MAX):
            await self._expire("queries", ExpireQueries(queries=queries))

    # Consumer groups and topics.

    async def _note_uses(self) -> None:
        groups, topics = await self.uses.take()
        for names in sliced(groups, EXPIRED_MAX):
            await self.writer.submit(NoteUses(groups=names))
        for names in sliced(topics, EXPIRED_MAX):
            await self.writer.submit(NoteUses(topics=names))

    async def _unused(self, uses: dict[str, int]) -> list[str]:
        """Return the names whose last recorded use is old enough for them to expire."""
        since_ms = noted_since_ms(self.store.core, self._now_ms)
        return await _found(
            uses, lambda names: [name for name in names if uses.get(name, since_ms) < since_ms]
        )

    async def _expire_groups(self) -> None:
        if not self.groups.are_made_by_use:
            # An expired group could not come back by itself.
            return
        known = self.store.core.catalog.groups
        for name in await self._unused(self.store.core.uses.groups):
            # One at a time: a group may have offsets in thousands of queues.
            if name not in known or not known[name].is_made_by_use or await self._has_backlog(name):
                continue
            if not self.uses.is_online(name):
                await self._expire("groups", ExpireGroups(names=(name,)))

    async def _has_backlog(self, group: str) -> bool:
        """Whether the store still has the group's next message in any of its queues."""
        meta, queues = self.meta, self.queues
        for keys in sliced(list(meta.index.of_group(group)), EXPIRED_MAX):
            for key in keys:
                offset, queue = meta.offsets.get(key, -1), queues.get(*key[1:])
                if queue is not None and queue.start <= offset < queue.end:
                    return True
            await asyncio.sleep(0)
        return False

    async def _expire_topics(self) -> None:
        core = self.store.core
        for name in await self._unused(core.uses.topics):
            await asyncio.sleep(0)
            kept = core.catalog.topics.get(name)
            if kept is None or not (may_expire(kept) and self.topics.may_be_made_again(name)):
                continue
            numbers = core.names.queues_of.get(name, {}).values()
            queues = {number: self.store.queues[number] for number in numbers}
            if all(queue.start == queue.end for queue in queues.values()):
                ends = {number: queue.end for number, queue in queues.items()}
                await self._expire("topics", ExpireTopic(name=name, queue_ends=ends))

    async def _expire(self, kind: str, command: Command) -> None:
        decision = await self.writer.submit(command)
        count = sum(map(_expired_count, decision.records))
        if count:
            self.counts[kind] += count
            log.info("names_expired", extra={"kind": kind, "count": count})


def _expired_count(record: Record) -> int:
    """Return how many names a record expires."""
    match record:
        case OriginsExpired():
            return len(record.numbers)
        case QueriesExpired():
            return len(record.queries)
        case _:
            return 1


async def _found(names: Iterable[T], find: Callable[[tuple[T, ...]], Iterable[U]]) -> list[U]:
    """Return what ``find`` finds among the names, examined a slice at a time."""
    found: list[U] = []
    for some in sliced(list(names), LOOKED_AT_MAX):
        found += find(some)
        await asyncio.sleep(0)
    return found
