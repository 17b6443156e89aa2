"""Letting names go that nobody uses any more.

The caller names candidates, a few at a time; here it is decided which of them may go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Decision, ExpireOrigins, ExpireQueries
from escrowmq.transaction.records import OriginsExpired, QueriesExpired

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions


def unused_since_ms(core: Transactions, now_ms: int) -> int:
    """A name whose last use is before this time may expire."""
    return now_ms - core.limits.unused_expire_ms


def expire_origins(core: Transactions, command: ExpireOrigins, now_ms: int) -> Decision:
    """Let origins go, but for those with a half message that is undecided or not yet visible."""
    origins, since_ms = core.names.origins, unused_since_ms(core, now_ms)
    unused = {number for number in command.numbers if origins.is_unused(number, since_ms)}
    if unused:
        unused -= core.table.origins_needed(unused)
    return Decision(records=(OriginsExpired(sorted(unused)),) if unused else ())


def expire_queries(core: Transactions, command: ExpireQueries, now_ms: int) -> Decision:
    """Let queries of Spark sinks go that decided nothing for long."""
    since_ms = unused_since_ms(core, now_ms)
    unused = [query for query in command.queries if core.batches.is_unused(*query, since_ms)]
    return Decision(records=(QueriesExpired(unused),) if unused else ())
