"""An audit from its beginning to its report."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.audit_cases import reports
from escrowmq.pipeline.audit_compare import (
    AuditRequest,
    Outcome,
    Work,
    compare_consumers,
    compare_records,
)
from escrowmq.pipeline.audit_findings import Compared
from escrowmq.pipeline.audit_pins import Pin, take_pins
from escrowmq.pipeline.audit_report import (
    AuditReport,
    BrokerReport,
    ComparisonReport,
    FoundReport,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Which of the counts belong to which comparison.
_COUNTS = {Compared.TABLE: ("table_rows",), Compared.VISIBLE: ("visible",)}
_RAISED = re.compile(r"escrowmq\.model\.errors\.\w+: (.+)")


def run_audit(spark: SparkSession, request: AuditRequest) -> AuditReport:
    """Audit; what cannot be compared is in the report, with the reason."""
    started_at_ms = time.time_ns() // 1_000_000
    pins = take_pins(request.brokers, since_ms=request.since_ms)
    run = _Run(Work(spark, request, pins))
    outcome = run.compare(Compared.RECORDS, compare_records)
    if outcome is not None:
        run.share(outcome)
    run.compare(Compared.CONSUMERS, compare_consumers)
    return AuditReport(
        started_at_ms=started_at_ms,
        took_ms=time.time_ns() // 1_000_000 - started_at_ms,
        brokers=[_broker(pin) for pin in pins],
        comparisons=run.comparisons,
        findings=run.findings,
        along=outcome.along if outcome is not None else [],
        open_ages_ms=outcome.ages_ms if outcome is not None else [],
    )


class _Run:
    """Comparisons one after the other; one that fails leaves the others alone."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.comparisons: list[ComparisonReport] = []
        self.findings: list[FoundReport] = []

    def compare(self, compared: Compared, by: Callable[[Work], Outcome]) -> Outcome | None:
        """Run one comparison, and note what came of it."""
        since = time.monotonic()
        work = self._work
        try:
            outcome = by(work)
            found = reports(outcome.found, work.views, cases_max=work.request.cases_max)
        except (EscrowError, PySparkException) as error:
            self.comparisons.append(
                ComparisonReport(
                    compared=compared,
                    not_compared=reason_of(error),
                    is_failed=True,
                    took_ms=_ms_since(since),
                )
            )
            return None
        self.findings += found
        self.comparisons.append(
            ComparisonReport(
                compared=compared,
                counts=outcome.counts,
                notes=outcome.notes,
                took_ms=_ms_since(since),
            )
        )
        return outcome

    def share(self, outcome: Outcome) -> None:
        """State table and queues were compared in one go with the records."""
        for compared, names in _COUNTS.items():
            counts = {name: outcome.counts.pop(name) for name in names if name in outcome.counts}
            self.comparisons.append(ComparisonReport(compared=compared, counts=counts))

    def leave_out(self, compared: Compared, why: str) -> None:
        """Say that it was not asked for."""
        self.comparisons.append(ComparisonReport(compared=compared, not_compared=why))


def _ms_since(since: float) -> int:
    return int((time.monotonic() - since) * 1_000)


def reason_of(error: Exception) -> str:
    """What went wrong, in our words if it was raised in ours, wherever that was."""
    if isinstance(error, EscrowError):
        return str(error)
    told = _RAISED.findall(str(error))
    return told[-1].strip() if told else str(error).strip().partition("\n")[0][:500]


def _broker(pin: Pin) -> BrokerReport:
    status = pin.status
    return BrokerReport(
        name=pin.name,
        address=pin.address,
        now_ms=status.now_ms,
        log_start=pin.log_start,
        log_end=pin.log_end,
        half_start=pin.known_from,
        half_end=status.half_end,
        undecided=status.undecided,
        parked=status.parked,
    )
