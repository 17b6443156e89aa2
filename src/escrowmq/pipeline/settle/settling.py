"""One settle round: reads undecided transactions, settles them, and reports what was done.

Runs on the driver. A round may run twice, run on two drivers at once, or be killed at any point.
That is safe because verdicts name the version that they were computed from, and a fence means the
same no matter which driver writes it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, dropwhile, islice
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import EscrowError, ProtocolViolation, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.pipeline.settle.brokers import AnsweringBroker, look_at, sights_of
from escrowmq.pipeline.settle.plan import RoundPlan
from escrowmq.pipeline.settle.reporting import LedgerReporter
from escrowmq.pipeline.settle.round_progress import RoundProgress
from escrowmq.pipeline.settle.round_summary import RoundSummary
from escrowmq.pipeline.settle.rows import (
    ASKS_DUE,
    ASKS_SENT,
    CAUSE,
    KIND,
    NO_LEDGER,
    REASON,
    ROWS,
    SEEN,
    UNKNOWN,
    UNTOLD,
    WAITING,
    WHAT,
    WITHOUT_DUE,
    ReportKind,
)
from escrowmq.pipeline.views.facts import (
    AGE_MS,
    BROKER,
    HALF_OFFSET,
    LEDGER,
    PRODUCER_GROUP,
    TRANSACTION_ID,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
    from pyspark.sql import SparkSession

    from escrowmq.look_up.ledger_book import LedgerBook
    from escrowmq.look_up.ledgers import KnownLedgers, Ledgers
    from escrowmq.model.lineage import Sight

log = event_log(__name__)

ASKS_MAX = 1_000
"""Default limit of back-checks for one producer group in one round."""
ALERTS_MAX = 20
"""How many parked transactions a round logs by name. All are counted."""

_COUNTED = (
    SEEN,
    WAITING,
    NO_LEDGER,
    *(outcome.value for outcome in VerdictOutcome if outcome is not VerdictOutcome.UNKNOWN),
)
_PARKED_FACTS = (BROKER, HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, AGE_MS, REASON)
_Report = Mapping[str, Any]


def settle_round(
    spark: SparkSession, brokers: Sequence[str], ledgers: Ledgers, *, asks_max: int = ASKS_MAX
) -> RoundSummary:
    """Run one round. To run many, keep a ``Settling``."""
    return Settling(spark, ledgers, asks_max=asks_max).round(brokers)


class Settling:
    """Runs rounds, one after another, on the driver."""

    def __init__(self, spark: SparkSession, ledgers: Ledgers, *, asks_max: int = ASKS_MAX) -> None:
        self._ledgers = ledgers
        self._plan = RoundPlan(spark, asks_max)
        self.progress = RoundProgress()
        self._reporter = LedgerReporter(ledgers.book, self.progress)
        #: Held while the ledgers are asked.
        self._asking = threading.Lock()

    def round(self, brokers: Sequence[str]) -> RoundSummary:
        """Examine everything undecided once, and do what the rules say now.

        If nothing is due, no Spark job runs. A broker that is unreachable, or becomes unreachable
        during the round, is left out, and the summary names it.

        Raises:
            ProtocolViolation: ``due_missing``, if facts were broken. All other transactions were
                settled.
            Unavailable: ``round_failed``, if no broker is the cause.
        """
        with self._asking, self.progress.running():
            made = _Round(self._plan)
            try:
                made.run(brokers, self._ledgers)
                self.progress.succeeded(made.read - made.away)
            finally:
                # Brokers need the report most when a round failed.
                self._reporter.send(sorted(made.read))
        summary = made.summary()
        for facts in made.parked[:ALERTS_MAX]:
            log.warning("transaction_parked", extra={name: facts[name] for name in _PARKED_FACTS})
        log.info("settle_done", extra=summary.to_dict())
        without_due = made.counts[WITHOUT_DUE]
        if without_due:
            raise ProtocolViolation(
                "due_missing",
                "no time rule matches the facts that a broker reported",
                rows=without_due,
            )
        return summary

    def report(self, brokers: Sequence[str]) -> None:
        """Report the ledgers to the brokers between two rounds, or while a long round runs."""
        if self._asking.acquire(blocking=False):
            try:
                self._ledgers.known()
            finally:
                self._asking.release()
        self._reporter.send(brokers)


@dataclass
class _Round:
    """State of a running round."""

    plan: RoundPlan
    started_at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    began_s: float = field(default_factory=time.monotonic)
    brokers: int = 0
    #: Addresses by broker name. Brokers that share a name are left out: they cannot be told apart.
    homes: Mapping[str, str] = field(default_factory=dict)
    #: Histories by broker address, taken before any data was read.
    sights: Mapping[str, Sight] = field(default_factory=dict)
    attempts: int = 0
    away: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    parked: list[_Report] = field(default_factory=list)
    #: Addresses of the brokers that answered.
    read: set[str] = field(default_factory=set)

    def run(self, addresses: Sequence[str], ledgers: Ledgers) -> None:
        """Settle.

        If the job fails because a broker became unreachable, run it again without that broker.

        Brokers where nothing is due are not read, because all their transactions are known to wait.
        """
        standing = self._look_at(addresses)
        known: KnownLedgers | None = None
        reports: pa.Table | None = None
        while reports is None and any(broker.has_work for broker in standing):
            known = known or ledgers.known()
            done = self.plan.reports(standing, known)
            try:
                reports = done.toArrow()
            except Exception as error:
                before, standing = standing, self._look_at([one.address for one in standing])
                if len(standing) == len(before):
                    raise Unavailable(
                        "round_failed", "the next round tries again", cause=_cause(error)
                    ) from error
        if reports is not None:
            self._take_in(reports, ledgers.book)
        idle = sum(broker.undecided for broker in standing if not broker.has_work)
        self.counts.update({SEEN: idle, WAITING: idle})

    def _take_in(self, reports: pa.Table, book: LedgerBook) -> None:
        from escrowmq.pipeline.settle.tasks import where

        ended = where(reports, KIND, ReportKind.LEDGER.value).to_pylist()
        # Failures last: a ledger that any task could not reach counts as unreachable.
        for one in sorted(ended, key=lambda one: bool(one[REASON])):
            book.note_look_up(one[LEDGER], one[REASON], one[CAUSE])
        attempts = where(reports, KIND, ReportKind.ATTEMPT.value)
        self._note(where(reports, KIND, ReportKind.ATTEMPT.value, is_so=False).to_pylist())
        self.attempts = attempts.num_rows
        if self.attempts:
            from escrowmq.pipeline.settle.attempts import settle_attempts

            done, away = settle_attempts(self.plan.spark, attempts, self.homes, self.sights)
            self._note(done)
            self._lose(away)

    def _look_at(self, addresses: Sequence[str]) -> list[AnsweringBroker]:
        standing, away = look_at(addresses)
        self._lose(away)
        self.brokers = len(standing)
        self.read |= {one.address for one in standing}
        self.sights = sights_of(standing)
        named = Counter(broker.name for broker in standing)
        self.homes = {one.name: one.address for one in standing if named[one.name] == 1}
        return standing

    def _lose(self, away: Mapping[str, EscrowError]) -> None:
        for address, error in away.items():
            log.warning("broker_away", extra={"broker": address, "cause": str(error)})
        self.away |= away.keys()

    def _note(self, reports: Iterable[_Report]) -> None:
        for report in reports:
            if report[KIND] == ReportKind.PARKED.value:
                self.parked.append(report)
            elif report[KIND] == ReportKind.COUNT.value and report[WHAT] in (UNKNOWN, UNTOLD):
                self.unknown[report[REASON]] += report[ROWS]
                if report[WHAT] == UNTOLD:
                    self.away.add(report[BROKER])
            elif report[KIND] == ReportKind.COUNT.value:
                self.counts[report[WHAT]] += report[ROWS]

    def summary(self) -> RoundSummary:
        """Return the summary of the round."""
        return RoundSummary(
            started_at_ms=self.started_at_ms,
            took_ms=int((time.monotonic() - self.began_s) * 1_000),
            brokers=self.brokers,
            away=tuple(sorted(self.away)),
            attempts=self.attempts,
            over_budget=self.counts[ASKS_DUE] - self.counts[ASKS_SENT],
            unknown=dict(self.unknown),
            **{name: self.counts[name] for name in _COUNTED},
        )


def _cause(error: Exception) -> str:
    """The line with the actual error; Spark surrounds it with stack traces of two languages."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
    traced = dropwhile(lambda line: not line.startswith("Traceback "), lines)
    # A task's own error is the first line after its stack trace that is not indented.
    raised = (line for line in islice(traced, 1, None) if not line[0].isspace())
    ours = (line for line in lines if "escrowmq.model.errors." in line)
    return next(chain(ours, raised), lines[0]).strip()
