"""Signs of life of pipelines, and their reports about ledgers, kept while they are valid.

Reports are only in memory: after a restart, the next round of each pipeline brings them again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.ledgers import LedgerReportRow, LedgerRow

PIPELINES_MAX = 16
"""Pipelines whose reports are kept; the broker drops the oldest report first."""

BROKER = "broker"
"""Stands in the place of a pipeline's name in what the broker itself found."""

VALID_MS_MAX = 600_000
"""Longest validity of a report, whatever its pipeline asks for."""


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one pipeline."""

    pipeline: str
    reported_at_ms: int
    valid_until_ms: int
    #: Their times are on the broker's monotonic clock.
    ledgers: tuple[LedgerRow, ...]


class LedgerReports:
    """The reports that a broker holds; callers pass the current time."""

    def __init__(self) -> None:
        #: By pipeline, the newest last.
        self._reports: dict[str, PipelineReport] = {}
        #: What the broker itself found.
        self._of_broker: PipelineReport | None = None

    def put(
        self,
        pipeline: str,
        rows: Sequence[LedgerReportRow],
        *,
        now_ms: int,
        valid_for_ms: int,
    ) -> None:
        """Store a report in place of the pipeline's previous one."""
        self._reports.pop(pipeline, None)
        if valid_for_ms <= 0:
            return
        self._reports[pipeline] = _report(pipeline, rows, now_ms, valid_for_ms)
        if len(self._reports) > PIPELINES_MAX:
            del self._reports[next(iter(self._reports))]

    def put_of_broker(
        self, rows: Sequence[LedgerReportRow], *, now_ms: int, valid_for_ms: int
    ) -> None:
        """Store what the broker itself found."""
        self._of_broker = _report(BROKER, rows, now_ms, valid_for_ms)

    def of_broker(self, now_ms: int) -> tuple[LedgerRow, ...] | None:
        """Return what the broker itself found; None if it has not looked lately."""
        is_valid = self._of_broker is not None and now_ms < self._of_broker.valid_until_ms
        return self._of_broker.ledgers if self._of_broker is not None and is_valid else None

    def current(self, now_ms: int) -> list[PipelineReport]:
        """Return the valid reports, the newest last, and forget the others."""
        self._reports = {
            name: report for name, report in self._reports.items() if now_ms < report.valid_until_ms
        }
        return list(self._reports.values())

    def ledgers(self, now_ms: int) -> list[LedgerRow]:
        """Return each ledger once: from a pipeline's newest report, or as the broker found it.

        The broker counts if no pipeline reports the ledger, or only the broker reaches it.

        A restarted pipeline reports under a new name, while its last report before that is still
        valid. So a configured name stands for one ledger, unless the reports give it two UUIDs.
        """
        found: dict[tuple[str, str], LedgerRow] = {}
        for report in self.current(now_ms):
            for facts in report.ledgers:
                found.pop((facts.name, ""), None)
                if not facts.uuid:
                    for name, uuid in [key for key in found if key[0] == facts.name]:
                        del found[name, uuid]
                found[facts.name, facts.uuid] = facts
        for facts in self.of_broker(now_ms) or ():
            known = found.get((facts.name, facts.uuid))
            if known is None or (facts.is_reachable and not known.is_reachable):
                found[facts.name, facts.uuid] = facts
        return list(found.values())

    def reached(self, now_ms: int, pipelines: Collection[str]) -> frozenset[str]:
        """Return the UUIDs of the ledgers that any of these pipelines reaches."""
        return frozenset(
            facts.uuid
            for report in self.current(now_ms)
            if report.pipeline in pipelines
            for facts in report.ledgers
            if facts.is_reachable and facts.uuid
        )


def _report(
    pipeline: str, rows: Sequence[LedgerReportRow], now_ms: int, valid_for_ms: int
) -> PipelineReport:
    return PipelineReport(
        pipeline=pipeline,
        reported_at_ms=now_ms,
        valid_until_ms=now_ms + min(valid_for_ms, VALID_MS_MAX),
        ledgers=tuple(_facts(pipeline, row, now_ms) for row in rows),
    )


def _facts(pipeline: str, row: LedgerReportRow, now_ms: int) -> LedgerRow:
    return LedgerRow(
        name=row.name,
        uuid=row.uuid,
        pipeline=pipeline,
        is_reachable=row.is_reachable,
        error=row.error,
        error_text=row.error_text[:SHOWN_CHARS_MAX],
        reported_at_ms=now_ms,
        succeeded_at_ms=_at(now_ms, row.succeeded_ago_ms),
        failed_at_ms=_at(now_ms, row.failed_ago_ms),
        uuid_before=row.uuid_before,
    )


def _at(now_ms: int, ago_ms: int | None) -> int | None:
    return None if ago_ms is None else now_ms - max(ago_ms, 0)


@dataclass(slots=True)
class PipelineSigns:
    """Times on the monotonic clock; None if there was no such request yet."""

    #: When the pipeline last sent a verdict, asked for news, and sent a heartbeat.
    verdict_at_ms: int | None = None
    awaited_at_ms: int | None = None
    heartbeat_at_ms: int | None = None
    #: Whether the last heartbeat said that the pipeline stops.
    has_left: bool = False

    @property
    def last_at_ms(self) -> int | None:
        """When the pipeline last did any of these; None if it has stopped since."""
        if self.has_left:
            return None
        times = (self.verdict_at_ms, self.awaited_at_ms, self.heartbeat_at_ms)
        return max((at_ms for at_ms in times if at_ms is not None), default=None)
