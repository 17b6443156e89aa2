"""What the demo has measured, as values: of each run, and of both together."""

from __future__ import annotations

import msgspec

from escrowmq.demo.step_times import StepTimes
from escrowmq.pipeline.audit.findings import Finding
from escrowmq.pipeline.audit.report import AuditReport
from escrowmq.pipeline.pages.origin import ReportOrigin


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run was at a time."""

    at_s: float
    paid: int
    #: The service downstream that is furthest behind.
    acted: int


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A SIGKILL that was sent."""

    at_s: float
    victim: str
    moment: str


class Run(msgspec.Struct, kw_only=True):
    """One run, as its conductor saw it."""

    name: str
    orders: int
    #: From the first start of the order service to its end, with all restarts in it.
    took_s: float = 0.0
    #: Of that: from each start of the order service to its first order.
    service_starts_s: float = 0.0
    #: And from each kill of the broker until it was ready again.
    broker_away_s: float = 0.0
    #: Where the time of an order went, measured since the last start of the order service.
    steps: StepTimes = StepTimes()
    #: From there until the last undecided transaction was settled.
    settled_after_s: float = 0.0
    paid: int = 0
    messages: int = 0
    kills: list[Kill] = []
    samples: list[Sample] = []
    #: Whether all services downstream were through with all messages in time.
    is_through: bool = False
    #: By service downstream: effects that are missing or too many.
    wrong_effects: dict[str, int] = {}

    @property
    def orders_per_s(self) -> float:
        """Orders paid in a second, restarts included."""
        return self.paid / self.took_s if self.took_s else 0.0

    @property
    def restarts_s(self) -> float:
        """The part of the run in which the order service or the broker was starting."""
        return self.service_starts_s + self.broker_away_s

    @property
    def working_orders_per_s(self) -> float:
        """Orders paid in a second, restarts left out."""
        working_s = self.took_s - self.restarts_s
        return self.paid / working_s if working_s > 0 else 0.0

    def killed(self, victim: str, moment: str = "") -> int:
        """How often somebody was killed."""
        return sum(kill.victim == victim and moment in ("", kill.moment) for kill in self.kills)


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """How transactions were decided, as the log has it."""

    #: Told by the order service, while it lived.
    committed_by_producer: int = 0
    rolled_back_by_producer: int = 0
    #: Undecided, and settled by the pipeline: the row was in the ledger, or it was fenced.
    committed_by_ledger: int = 0
    rolled_back_by_fence: int = 0
    #: Of those that the pipeline settled: how long each was undecided, in order.
    ages_ms: list[int] = []
    undecided: int = 0


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What Spark found."""

    plain: AuditReport
    transactional: AuditReport
    decided: Decided


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One way to have four databases agree, on PostgreSQL and without kills."""

    orders: int
    #: Until the last order was paid, and until all four branches had it.
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
        """Orders paid in a second."""
        return self.orders / self.took_s

    @property
    def agreed_per_s(self) -> float:
        """Orders in a second that all four know of."""
        return self.orders / self.agreed_s


class OnPostgres(msgspec.Struct, frozen=True, kw_only=True):
    """Ours beside XA, and both again with one service that is slow."""

    ours: Compared
    xa: Compared
    slow_ms: int
    slow_ours: Compared
    slow_xa: Compared


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    seed: int
    plain: Run
    transactional: Run
    audited: Audited
    on_postgres: OnPostgres | None = None
    origin: ReportOrigin | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the transactional run kept the promise, and all of it could be compared."""
        run, audit = self.transactional, self.audited.transactional
        return (
            audit.is_clean
            and not audit.has_failed
            and not self.audited.decided.undecided
            and run.is_through
            and run.paid == run.orders
            and not any(run.wrong_effects.values())
        )

    @property
    def plain_disagreements(self) -> int:
        """Orders and messages of the plain run that do not fit together."""
        return disagreements(self.audited.plain)


def found(report: AuditReport, name: Finding) -> int:
    """How often an audit found something."""
    return sum(one.total for one in report.findings if one.name is name)


def disagreements(report: AuditReport) -> int:
    """All that an audit found."""
    return sum(report.totals.values())
