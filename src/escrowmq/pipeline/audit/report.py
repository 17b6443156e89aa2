"""What an audit says: a value, and the same as JSON.  ``html.py`` makes the page of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from escrowmq.pipeline.audit.findings import Compared, Finding, Kind
from escrowmq.pipeline.audit.meanings import MEANINGS
from escrowmq.pipeline.pages.origin import ReportOrigin

VERSION = 1


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was found, and the facts about it."""

    #: The broker's name, where it concerns one.
    broker: str | None = None
    half_offset: int | None = None
    transaction_id: str | None = None
    producer_group: str | None = None
    #: When it happened, or was stored.
    at_ms: int | None = None
    #: Who decided, if anybody did.
    by: str | None = None
    detail: str = ""


class FoundReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found under one name."""

    name: Finding
    kind: Kind
    compared: Compared
    about: str
    remedy: str
    #: How many there are; of these ``cases`` has the first ones.
    total: int
    cases: list[Case]


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of evidence that was held against the records, or was not."""

    compared: Compared
    #: Which one, where there may be several.
    which: str = ""
    #: Why it was not compared; empty if it was.
    not_compared: str = ""
    #: It was asked for, and could not be done.
    is_failed: bool = False
    #: What was looked at, by name.
    counts: dict[str, int] = {}
    #: Up to where this can be said, and other remarks.
    notes: list[str] = []
    took_ms: int = 0


class BrokerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, and the part of its log that was read."""

    name: str
    address: str
    #: Its clock at the pin.
    now_ms: int
    log_start: int
    log_end: int
    #: Half offsets: from, and up to.
    half_start: int
    half_end: int
    undecided: int
    parked: int


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit says."""

    version: int = VERSION
    started_at_ms: int
    took_ms: int
    brokers: list[BrokerReport]
    comparisons: list[ComparisonReport]
    findings: list[FoundReport]
    #: Broker, first half offset of a range, state, and how many transactions.
    along: list[tuple[str, int, str, int]] = []
    #: Ages in ms of transactions that nobody has decided, the oldest first; not all if many.
    open_ages_ms: list[int] = []
    #: Version, date and machine; older reports have none.
    origin: ReportOrigin | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def has_failed(self) -> bool:
        """Whether something was asked for that could not be compared."""
        return any(one.is_failed for one in self.comparisons)

    @property
    def totals(self) -> dict[Kind, int]:
        """How many were found of each kind."""
        totals = dict.fromkeys(Kind, 0)
        for found in self.findings:
            totals[found.kind] += found.total
        return totals


def found_report(name: Finding, total: int, cases: Sequence[Case]) -> FoundReport:
    """What was found under this name, with what it means."""
    meaning = MEANINGS[name]
    return FoundReport(
        name=name,
        kind=meaning.kind,
        compared=meaning.compared,
        about=meaning.about,
        remedy=meaning.remedy,
        total=total,
        cases=list(cases),
    )


def as_json(report: AuditReport) -> bytes:
    """The report for programs."""
    shown: Mapping[str, object] = msgspec.to_builtins(report) | {
        "is_clean": report.is_clean,
        "has_failed": report.has_failed,
        "totals": {kind.value: count for kind, count in report.totals.items()},
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"
