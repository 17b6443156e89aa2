"""Names that nobody uses any more are let go: in the background, a few at a time.

Candidates are found here; the core decides which of them may go, by its own time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from escrowmq.transaction.commands import ExpireOrigins, ExpireQueries
from escrowmq.transaction.expiring import unused_since_ms
from escrowmq.transaction.records import OriginsExpired, QueriesExpired

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.transaction.commands import Command, Decision

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOKED_AT_MAX = 4_096
"""Names that are looked at in one piece: less than a millisecond."""
KINDS = ("origins", "queries", "groups", "topics")
EXPIRED_MAX = 1_024
"""Names that one command lets go."""


class Expiring:
    """Belongs to one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Whether time is known well enough to delete anything by it.
        self.may_delete: Callable[[], bool] = lambda: True
        #: Names that went since the start, by kind.
        #: All from the start, so that the first one is seen as a change.
        self.counts: Counter[str] = Counter(dict.fromkeys(KINDS, 0))

    async def run(self) -> None:
        """Let go of all that is unused now."""
        if self.may_delete():
            await self._expire_origins()
            await self._expire_queries()

    @property
    def since_ms(self) -> int:
        """A name that was last used before this may expire."""
        store = self._broker.store
        now_ms = max(self._broker.clock.now_ms(), store.last_at_ms)
        return unused_since_ms(store.core, now_ms)

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

    async def _submit(self, command: Command) -> Decision:
        return await self._broker.writer.submit(command)

    def _count(self, kind: str, count: int) -> None:
        self.counts[kind] += count
        log.info("names_expired", extra={"kind": kind, "count": count})


def sliced(values: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    """These values, so many at a time."""
    left = iter(values)
    while part := tuple(islice(left, size)):
        yield part
