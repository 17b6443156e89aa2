"""Result of one settle round, for the log, the metrics and the table ``settle_rounds``."""

from __future__ import annotations

from typing import Any

import msgspec

from escrowmq.pipeline.brokers_round import BrokersRound


class RoundSummary(BrokersRound, frozen=True, kw_only=True):
    """Counts of transactions, over all brokers.

    Work that a task did before it died, or before its broker became unreachable, is not counted. It
    is still done, and the next round sees it.
    """

    #: Undecided transactions that were read.
    seen: int = 0
    #: Their next check is not due yet.
    waiting: int = 0
    committed: int = 0
    rolled_back: int = 0
    #: A producer's socket accepted the back-check.
    asked: int = 0
    #: Due for a back-check, but no producer of their group is online.
    no_producer: int = 0
    #: Due for a back-check because no configured database has the ledger that they name.
    no_ledger: int = 0
    #: Due for a back-check, but their group's budget for this round is used up.
    over_budget: int = 0
    #: The broker is already asking, or is overloaded.
    busy: int = 0
    #: They had changed before the verdict arrived.
    stale: int = 0
    refused: int = 0
    parked: int = 0
    #: Spark sink attempts that were seen. Those with evidence against them count as rolled back.
    attempts: int = 0
    #: Nothing was done, by reason: a fault of the ledger or of the broker.
    unknown: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def unknown_total(self) -> int:
        """All transactions whose outcome is unknown."""
        return sum(self.unknown.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log line or a table row."""
        return {
            **msgspec.structs.asdict(self),
            "away": list(self.away),
            "unknown": self.unknown_total,
            "unknown_by_reason": dict(self.unknown),
        }
