"""One settle round: reads what is undecided, has it settled, and says what was done.

Runs on the driver.  A round may run twice, on two drivers at once, or be killed anywhere: verdicts
name the version that they were computed from, and fences mean the same whoever writes them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import ProtocolViolation, Unavailable
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.pipeline.facts import AGE_MS, BROKER, HALF_OFFSET, PRODUCER_GROUP, TRANSACTION_ID
from escrowmq.pipeline.round_summary import RoundSummary
from escrowmq.pipeline.settle_brokers import Standing, look_at
from escrowmq.pipeline.settle_rows import (
    ASKS_DUE,
    ASKS_SENT,
    KIND,
    REASON,
    ROWS,
    UNKNOWN,
    WHAT,
    Kind,
)
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from escrowmq.pipeline.ledgers import KnownLedgers, Ledgers

log = logging.getLogger(__name__)

ASKS_MAX = 1_000
"""Checks for one producer group in one round, if nobody says otherwise."""
RANGE_ROWS = 50_000
"""What one task settles, about."""
SMALL_ROWS = 10_000
"""So few undecided, over all brokers, are one task's work."""
ALERTS_MAX = 20
"""Parked transactions that a round names in the log; all are counted."""

_OUTCOMES = {outcome.value for outcome in VerdictOutcome} - {UNKNOWN}
_Report = Mapping[str, Any]


def settle_round(
    spark: SparkSession, brokers: Sequence[str], ledgers: Ledgers, *, asks_max: int = ASKS_MAX
) -> RoundSummary:
    """Look at everything undecided once, and do what the rules say now.

    Raises:
        ProtocolViolation: ``due_missing``: a broker's facts were broken; all others were settled.
        Unavailable: ``round_failed``, if no broker is to blame.
    """
    made = _Round(spark, ledgers, asks_max)
    made.run(brokers)
    summary = made.summary()
    log.info("settle_done", extra=summary.to_dict())
    if made.without_due:
        raise ProtocolViolation(
            "due_missing", "no rule holds for facts that a broker sent", rows=made.without_due
        )
    return summary


@dataclass
class _Round:
    """What is known while a round runs."""

    spark: SparkSession
    ledgers: Ledgers
    asks_max: int
    started_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    began_s: float = field(default_factory=time.monotonic)
    brokers: int = 0
    without_due: int = 0
    away: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    parked: list[_Report] = field(default_factory=list)

    def run(self, addresses: Sequence[str]) -> None:
        """Settle; a broker that goes away meanwhile is left out, and the others are settled."""
        known = self.ledgers.known()
        standing = self._look_at(addresses)
        reports: list[_Report] | None = None
        while reports is None and any(broker.undecided for broker in standing):
            try:
                reports = self._settle(standing, known)
            except Exception as error:
                before, standing = standing, self._look_at([one.address for one in standing])
                if len(standing) == len(before):
                    raise Unavailable(
                        "round_failed", "the next round tries again", cause=_cause(error)
                    ) from error
        self._note(reports or ())
        self._settle_attempts(reports or (), standing)

    def _settle_attempts(self, reports: Iterable[_Report], standing: Sequence[Standing]) -> None:
        attempts = [report for report in reports if report[KIND] == Kind.ATTEMPT.value]
        self.counts["attempts"] = len(attempts)
        if attempts:
            from escrowmq.pipeline.settle_attempts import settle_attempts

            self._note(settle_attempts(self.spark, attempts, standing))

    def _look_at(self, addresses: Sequence[str]) -> list[Standing]:
        standing, away = look_at(addresses)
        for address, error in away.items():
            log.warning("broker_away", extra={"broker": address, "cause": str(error)})
        self.away |= away.keys()
        self.brokers = len(standing)
        return standing

    def _settle(self, standing: Sequence[Standing], known: KnownLedgers) -> list[_Report]:
        """The one job of the round."""
        from pyspark.sql import Observation

        from escrowmq.pipeline import settle
        from escrowmq.pipeline.settle_tasks import SettleTask, TellTask
        from escrowmq.transaction.commands import VerdictKind

        policies = {broker.address: broker.policy for broker in standing}
        observed = Observation()
        due = settle.classified(self._undecided(standing), policies, known.uuids)
        settled = settle.settled(settle.to_settle(settle.counted(due, observed)), SettleTask(known))
        budgeted = settle.within_budget(settled, self.asks_max)
        done = settle.told(budgeted, TellTask(VerdictKind.ASK, Kind.ASK))
        reports: list[_Report] = done.toArrow().to_pylist()
        counts = observed.get
        self.without_due = counts.pop(settle.WITHOUT_DUE)
        self.counts.update(counts)
        return reports

    def _undecided(self, standing: Sequence[Standing]) -> DataFrame:
        options = {
            "view": "transactions",
            "broker": ",".join(broker.address for broker in standing),
            "states": State.PREPARED.label,
            "withIds": "true",
            "rangeRows": str(RANGE_ROWS),
        }
        read = self.spark.read.format("escrowmq").options(**options).load()
        is_small = sum(broker.undecided for broker in standing) <= SMALL_ROWS
        return read.coalesce(1) if is_small else read

    def _note(self, reports: Iterable[_Report]) -> None:
        for report in reports:
            if report[KIND] == Kind.PARKED.value:
                self.parked.append(report)
            elif report[KIND] == Kind.COUNT.value and report[WHAT] == UNKNOWN:
                self.unknown[report[REASON]] += report[ROWS]
            elif report[KIND] == Kind.COUNT.value:
                self.counts[report[WHAT]] += report[ROWS]

    def summary(self) -> RoundSummary:
        """Say what was done, and raise the alarm for what was parked."""
        for report in self.parked[:ALERTS_MAX]:
            names = (BROKER, HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, AGE_MS, REASON)
            log.warning("transaction_parked", extra={name: report[name] for name in names})
        over_budget = self.counts.pop(ASKS_DUE, 0) - self.counts.pop(ASKS_SENT, 0)
        return RoundSummary(
            started_at_ms=self.started_at_ms,
            took_ms=int((time.monotonic() - self.began_s) * 1_000),
            brokers=self.brokers,
            away=tuple(sorted(self.away)),
            over_budget=over_budget,
            unknown=dict(self.unknown),
            **self.counts,
        )


def _cause(error: Exception) -> str:
    """The line that says it; Spark puts stack traces of two languages around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "escrowmq." in line), lines[0] if lines else repr(error))
