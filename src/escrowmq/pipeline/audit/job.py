"""Runs an audit and makes its report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.audit.cases import reports
from escrowmq.pipeline.audit.compare import (
    AuditRequest,
    AuditRun,
    ComparisonResult,
    compare_consumers,
    compare_records,
    compare_rounds,
)
from escrowmq.pipeline.audit.compare_business import compare_business
from escrowmq.pipeline.audit.compare_lake import compare_lake
from escrowmq.pipeline.audit.compare_ledgers import compare_ledgers, find_ledgers
from escrowmq.pipeline.audit.findings import ComparedEvidence
from escrowmq.pipeline.audit.pins import Pin, take_pins
from escrowmq.pipeline.audit.report import (
    AuditReport,
    BrokerReport,
    ComparisonReport,
    FoundReport,
)
from escrowmq.pipeline.pages.origin import this_origin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The counts that belong to each comparison.
_COUNTS = {ComparedEvidence.TABLE: ("table_rows",), ComparedEvidence.VISIBLE: ("visible",)}
_RAISED = re.compile(r"escrowmq\.model\.errors\.\w+: (.+)")


def run_audit(spark: SparkSession, request: AuditRequest) -> AuditReport:
    """Run an audit. If a comparison is not possible, the report says why."""
    started_at_ms = time.time_ns() // 1_000_000
    pins = take_pins(request.brokers, since_ms=request.since_ms)
    run = _Run(AuditRun(spark, request, pins))
    outcome = run.compare(ComparedEvidence.RECORDS, compare_records)
    run.share(outcome)
    if request.lake:
        run.compare(ComparedEvidence.LAKE, compare_lake)
    else:
        run.leave_out(ComparedEvidence.LAKE, "no lake was given")
    run.ledgers(request.ledgers)
    if request.business is not None:
        run.compare(ComparedEvidence.BUSINESS, compare_business, which=request.business.table)
    else:
        run.leave_out(ComparedEvidence.BUSINESS, "no table was given")
    if any(pin.status.compared_at_ms for pin in pins):
        run.compare(ComparedEvidence.ROUNDS, compare_rounds)
    run.compare(ComparedEvidence.CONSUMERS, compare_consumers)
    return AuditReport(
        started_at_ms=started_at_ms,
        took_ms=time.time_ns() // 1_000_000 - started_at_ms,
        brokers=[_broker(pin) for pin in pins],
        comparisons=run.comparisons,
        findings=run.findings,
        along=outcome.along if outcome is not None else [],
        open_ages_ms=outcome.ages_ms if outcome is not None else [],
        origin=this_origin(),
    )


class _Run:
    """Runs comparisons one after another. A failed one does not stop the others."""

    def __init__(self, work: AuditRun) -> None:
        self._work = work
        self.comparisons: list[ComparisonReport] = []
        self.findings: list[FoundReport] = []

    def compare(
        self,
        compared: ComparedEvidence,
        by: Callable[[AuditRun], ComparisonResult],
        *,
        which: str = "",
    ) -> ComparisonResult | None:
        """Run one comparison, and record its result."""
        since = time.monotonic()
        work = self._work
        try:
            outcome = by(work)
            found = reports(outcome.found, work.views, cases_max=work.request.cases_max)
        except Exception as error:  # noqa: BLE001 -- after any failure the others still run
            self.fail(compared, error, which=which, took_ms=_ms_since(since))
            return None
        self.findings += found
        self.comparisons.append(
            ComparisonReport(
                compared=compared,
                which=which,
                not_compared=outcome.unproved,
                is_failed=bool(outcome.unproved),
                counts=outcome.counts,
                notes=outcome.notes,
                took_ms=_ms_since(since),
            )
        )
        return outcome

    def fail(
        self, compared: ComparedEvidence, error: Exception, *, which: str = "", took_ms: int = 0
    ) -> None:
        """Record that a requested comparison failed."""
        self.comparisons.append(
            ComparisonReport(
                compared=compared,
                which=which,
                not_compared=reason_of(error),
                is_failed=True,
                took_ms=took_ms,
            )
        )

    def share(self, outcome: ComparisonResult | None) -> None:
        """Report the state table and the queues, which are compared together with the records."""
        for compared, names in _COUNTS.items():
            if outcome is None:
                why = "the records could not be read"
                report = ComparisonReport(compared=compared, not_compared=why, is_failed=True)
            else:
                given = outcome.counts
                counts = {name: given.pop(name) for name in names if name in given}
                report = ComparisonReport(compared=compared, counts=counts)
            self.comparisons.append(report)

    def ledgers(self, ledgers: Mapping[str, str]) -> None:
        """Compare the ledgers whose databases answer."""
        if not ledgers:
            self.leave_out(ComparedEvidence.LEDGER, "no ledger is in the config")
            return
        found = find_ledgers(ledgers)
        for name, error in found.silent.items():
            self.fail(ComparedEvidence.LEDGER, error, which=name)
        if found.urls:
            which = ", ".join(name for name in ledgers if name not in found.silent)
            by = partial(compare_ledgers, urls=found.urls)
            self.compare(ComparedEvidence.LEDGER, by, which=which)

    def leave_out(self, compared: ComparedEvidence, why: str) -> None:
        """Record that a comparison was not requested."""
        self.comparisons.append(ComparisonReport(compared=compared, not_compared=why))


def _ms_since(since: float) -> int:
    return int((time.monotonic() - since) * 1_000)


def reason_of(error: Exception) -> str:
    """The error text; for an error of ours in Spark's text, only its own line."""
    if isinstance(error, EscrowError):
        return str(error)
    told = _RAISED.findall(str(error))
    return told[-1].strip() if told else str(error).strip().partition("\n")[0][:500]


def _broker(pin: Pin) -> BrokerReport:
    return BrokerReport(
        name=pin.name,
        address=pin.address,
        now_ms=pin.status.now_ms,
        log_start=pin.log_start,
        log_end=pin.log_end,
        half_start=pin.known_from,
        half_end=pin.status.half_end,
        undecided=pin.status.undecided,
        parked=pin.status.parked,
    )
