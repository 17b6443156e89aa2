"""The result of an audit as a value and as JSON. ``html.py`` makes a page from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from escrowmq.pipeline.audit.findings import Breach, ComparedEvidence, FindingName
from escrowmq.pipeline.audit.meanings import MEANINGS
from escrowmq.pipeline.pages.origin import ReportOrigin

VERSION = 1


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, and the facts about it."""

    #: The broker's name, if the finding concerns one.
    broker: str | None = None
    half_offset: int | None = None
    transaction_id: str | None = None
    producer_group: str | None = None
    #: When it happened, or was stored.
    at_ms: int | None = None
    #: The decider, if there is a decision.
    by: str | None = None
    detail: str


class FoundReport(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one name."""

    name: FindingName
    kind: Breach
    compared: ComparedEvidence
    about: str
    remedy: str
    #: The number of findings. ``cases`` has the first ones.
    total: int
    cases: list[Case]


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of evidence, and whether it was compared with the records."""

    compared: ComparedEvidence
    #: Which one, if there may be several.
    which: str = ""
    #: Why it was not compared; empty if it was.
    not_compared: str = ""
    #: Whether it was requested and failed.
    is_failed: bool = False
    #: How much was compared, by name.
    counts: dict[str, int] = {}
    #: How far the result holds, and other notes.
    notes: list[str] = []
    took_ms: int = 0


class BrokerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, and the part of its log that was read."""

    name: str
    address: str
    #: The broker's clock at the pin.
    now_ms: int
    log_start: int
    log_end: int
    #: The range of half offsets, ``[start, end)``.
    half_start: int
    half_end: int
    undecided: int
    parked: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    version: int = VERSION
    started_at_ms: int
    took_ms: int
    brokers: list[BrokerReport]
    comparisons: list[ComparisonReport]
    findings: list[FoundReport]
    #: Broker, first half offset of a range, state, and number of transactions.
    along: list[tuple[str, int, str, int]] = []
    #: Ages in ms of undecided transactions, the oldest first; limited if there are many.
    open_ages_ms: list[int] = []
    #: Version, date and machine; None in older reports.
    origin: ReportOrigin | None = None

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def has_failed(self) -> bool:
        """Whether a requested comparison failed."""
        return any(one.is_failed for one in self.comparisons)

    @property
    def totals(self) -> dict[Breach, int]:
        """The number of findings of each kind."""
        totals = dict.fromkeys(Breach, 0)
        for found in self.findings:
            totals[found.kind] += found.total
        return totals


def found_report(name: FindingName, total: int, cases: Sequence[Case]) -> FoundReport:
    """The report of the findings of one name, with their meaning."""
    meaning = MEANINGS[name]._asdict()
    return FoundReport(name=name, **meaning, total=total, cases=list(cases))


def as_json(report: AuditReport) -> bytes:
    """The report for programs."""
    shown: Mapping[str, object] = msgspec.to_builtins(report) | {
        "is_clean": report.is_clean,
        "has_failed": report.has_failed,
        "totals": {kind.value: count for kind, count in report.totals.items()},
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"
