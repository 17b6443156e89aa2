"""Measured results of the demo, for each run and for both together."""

from __future__ import annotations

import msgspec

from escrowmq.demo.schedule import Kill
from escrowmq.demo.step_times import StepTimes
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.report import AuditReport
from escrowmq.pipeline.pages.origin import ReportOrigin


class ProgressSample(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a run at one moment."""

    at_s: float
    paid: int
    #: Messages consumed by the downstream service that is furthest behind.
    acted: int


class DemoRun(msgspec.Struct, kw_only=True):
    """One run as its conductor saw it."""

    name: str
    orders: int
    #: From the first start of the order service to its end, restarts included.
    took_s: float = 0.0
    #: Part of ``took_s``: from each start of the order service to its first order.
    service_starts_s: float = 0.0
    #: Part of ``took_s``: from each kill of the broker until it was ready again.
    broker_away_s: float = 0.0
    #: Time of each step of an order, measured since the last start of the order service.
    steps: StepTimes = StepTimes()
    #: From the end of the order service until the last undecided transaction was settled.
    settled_after_s: float = 0.0
    paid: int = 0
    messages: int = 0
    kills: list[Kill] = []
    samples: list[ProgressSample] = []
    #: Whether all downstream services consumed all messages in time.
    is_through: bool = False
    #: By downstream service: effects that are missing or duplicated.
    wrong_effects: dict[str, int] = {}

    @property
    def orders_per_s(self) -> float:
        """Orders paid per second, restarts included."""
        return self.paid / self.took_s if self.took_s else 0.0

    @property
    def restarts_s(self) -> float:
        """Seconds of the run in which the order service or the broker was starting."""
        return self.service_starts_s + self.broker_away_s

    @property
    def working_orders_per_s(self) -> float:
        """Orders paid per second, restarts left out."""
        working_s = self.took_s - self.restarts_s
        return self.paid / working_s if working_s > 0 else 0.0

    def killed(self, victim: str, moment: str = "") -> int:
        """Return how often a victim was killed, at this moment or at any."""
        return sum(kill.victim == victim and moment in ("", kill.moment) for kill in self.kills)


class DecisionCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Number of transactions by how they were decided, according to the log."""

    #: Decided by the order service.
    committed_by_producer: int
    rolled_back_by_producer: int
    #: Settled by the broker: it found the row in the ledger, or it fenced the transaction.
    committed_by_ledger: int
    rolled_back_by_fence: int
    #: How long each transaction that the broker settled was undecided, in ascending order.
    ages_ms: list[int]
    undecided: int


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the Spark audits."""

    plain: AuditReport
    transactional: AuditReport
    decided: DecisionCounts

    @property
    def is_proven(self) -> bool:
        """Whether the transactional run's audit is complete and clean, and nothing is undecided."""
        audit = self.transactional
        return audit.is_clean and not audit.has_failed and not self.decided.undecided


class MethodFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one method to make four databases agree, on PostgreSQL and without kills."""

    orders: int
    #: Until the last order was paid; ``agreed_s`` until all four branches had it.
    took_s: float
    agreed_s: float
    #: How long a transaction held its locks in the database of orders, in any of the others, and
    #: in all four together.
    orders_lock_ms_median: float
    orders_lock_ms_p99: float
    others_lock_ms_median: float
    lock_ms_an_order: float
    do_agree: bool

    @property
    def orders_per_s(self) -> float:
        """Orders paid per second."""
        return self.orders / self.took_s

    @property
    def agreed_per_s(self) -> float:
        """Orders per second that reached all four branches."""
        return self.orders / self.agreed_s


class OnPostgres(msgspec.Struct, frozen=True, kw_only=True):
    """Our method and XA, and both again with one slow service."""

    ours: MethodFigures
    xa: MethodFigures
    slow_ms: int
    slow_ours: MethodFigures
    slow_xa: MethodFigures


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All results of the demo."""

    seed: int
    plain: DemoRun
    transactional: DemoRun
    audited: Audited
    on_postgres: OnPostgres | None
    origin: ReportOrigin | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the transactional run kept the promise, and every comparison could be made."""
        run = self.transactional
        return (
            self.audited.is_proven
            and run.is_through
            and run.paid == run.orders
            and not any(run.wrong_effects.values())
        )


def found(report: AuditReport, name: FindingName) -> int:
    """Return how often an audit made this finding."""
    return sum(one.total for one in report.findings if one.name is name)


def disagreements(report: AuditReport) -> int:
    """Return the total of an audit's findings."""
    return sum(report.totals.values())
