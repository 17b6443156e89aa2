"""What one settle round did: for the log, the metrics and the table ``settle_rounds``."""

from __future__ import annotations

from typing import Any

import msgspec


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of transactions, over all brokers.

    What a task did before it died, or before its broker went away, is not counted; it is done all
    the same, and the next round sees it.
    """

    #: On the driver's clock.
    started_at_ms: int
    took_ms: int
    #: Brokers that were looked at, and the addresses of those that were not or not to the end.
    brokers: int
    away: tuple[str, ...] = ()
    #: Undecided ones that were read.
    seen: int = 0
    #: Their next check lies ahead.
    waiting: int = 0
    committed: int = 0
    rolled_back: int = 0
    #: Producers' sockets took the check.
    asked: int = 0
    #: Due for a check, but nobody of their group is online.
    no_producer: int = 0
    #: Due for a check because no database that is configured has the ledger that they name.
    no_ledger: int = 0
    #: Due for a check, but their group has had its share of this round.
    over_budget: int = 0
    #: The broker is asking already, or has its hands full.
    busy: int = 0
    #: They had moved on when the verdict came.
    stale: int = 0
    refused: int = 0
    parked: int = 0
    #: Attempts of Spark sinks that were seen; rolled back are those with evidence against them.
    attempts: int = 0
    #: Nothing was done, by reason: what is wrong with the ledger, or with the broker.
    unknown: dict[str, int] = {}

    @property
    def unknown_total(self) -> int:
        """All of which nothing is known."""
        return sum(self.unknown.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a line of the log or of a table."""
        return {
            **msgspec.structs.asdict(self),
            "away": list(self.away),
            "unknown": self.unknown_total,
            "unknown_by_reason": dict(self.unknown),
        }
