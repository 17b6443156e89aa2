"""Decides which process checks undecided transactions: the broker, a pipeline, or none.

Both may check at once without harm, because verdicts name the version that they were computed from.
Leadership only avoids double work. It is per ledger: the broker looks up the ledgers that no living
pipeline reaches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from escrowmq.broker.state.ledger_reports import LedgerReports
from escrowmq.broker.state.pipeline_life import PipelineLife
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.model.event_log import event_log
from escrowmq.transaction.policy import CheckPolicy

log = event_log(__name__)

PATIENCE = 2
"""A pipeline without a successful round for this many check intervals does not lead. If the broker
has none for as long, its checks are stalled."""
PATIENCE_MS_MIN = 15_000
"""The least time that the process that checks has for a successful round."""


class Checker(StrEnum):
    """The process that checks undecided transactions."""

    BROKER = "broker"
    PIPELINE = "pipeline"
    NONE = "none"


@dataclass(eq=False)
class Leadership:
    """The process that checks, and since when it does."""

    policy: CheckPolicy
    clock: BrokerClock
    life: PipelineLife
    reports: LedgerReports
    checker: Checker = field(init=False)
    #: Since when ``checker`` checks, in store time.
    since_ms: int = field(init=False)
    #: Since when a check has been due without a break, on the monotonic clock; None if none is.
    due_since_ms: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.checker = self._now()
        self.since_ms = self.clock.now_ms()

    @property
    def patience_ms(self) -> int:
        """How long the process that checks has for a successful round."""
        return max(PATIENCE * self.policy.check_interval_ms, PATIENCE_MS_MIN)

    def look(self) -> Checker:
        """Decide who checks from now on."""
        self.life.note_failures(
            self.clock.monotonic_ms(),
            due_since_ms=self.due_since_ms,
            patience_ms=self.patience_ms,
        )
        before, self.checker = self.checker, self._now()
        if self.checker is not before:
            self.since_ms = self.clock.now_ms()
            log.info("checker_changed", extra={"checker": self.checker, "before": before})
        return self.checker

    def note_due(self, *, is_due: bool) -> None:
        """Note whether any check is due now."""
        if not is_due:
            self.due_since_ms = None
        elif self.due_since_ms is None:
            self.due_since_ms = self.clock.monotonic_ms()

    def leads(self, ledger: str) -> bool:
        """Whether the broker itself looks up transactions of this ledger."""
        if self.checker is Checker.PIPELINE and self.policy.checked_by == "auto":
            reached = self.reports.reached(self.clock.monotonic_ms(), self._working())
            return ledger not in reached
        return self.checker is Checker.BROKER

    def _now(self) -> Checker:
        match self.policy.checked_by:
            case "off":
                return Checker.NONE
            case "broker":
                return Checker.BROKER
            case "pipeline":
                return Checker.PIPELINE
            case "auto":
                return Checker.PIPELINE if self._working() else Checker.BROKER

    def _working(self) -> frozenset[str]:
        """Return the pipelines that are alive and end their rounds successfully and in time."""
        return self.life.working(
            self.clock.monotonic_ms(),
            due_since_ms=self.due_since_ms,
            patience_ms=self.patience_ms,
        )
