"""Pipelines' reports about ledgers, kept while they are valid.

Reports are only in memory: after a restart, the next round of each pipeline brings them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.protocol.limits import SHOWN_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.protocol.own_ledgers import LedgerReportRow

PIPELINES_MAX = 16
"""Pipelines whose reports are kept; the broker drops the oldest report first."""

VALID_MS_MAX = 600_000
"""Longest validity of a report, whatever its pipeline asks for."""


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's findings about a ledger; times are on the broker's monotonic clock."""

    #: NAME of the section `[ledger.NAME]`.
    name: str
    #: Empty if the pipeline never read it from the database.
    uuid: str
    pipeline: str
    is_reachable: bool
    error: str
    error_text: str
    reported_at_ms: int
    succeeded_at_ms: int | None
    failed_at_ms: int | None
    uuid_before: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One report of one pipeline."""

    pipeline: str
    reported_at_ms: int
    valid_until_ms: int
    #: When the pipeline's last settle round for this broker ended.
    round_ended_at_ms: int | None
    ledgers: tuple[LedgerFacts, ...]


class LedgerReports:
    """The reports that a broker holds; callers pass the current time."""

    def __init__(self) -> None:
        #: By pipeline, the newest last.
        self._reports: dict[str, Report] = {}

    def put(
        self,
        pipeline: str,
        rows: Sequence[LedgerReportRow],
        *,
        now_ms: int,
        valid_for_ms: int,
        round_ended_ago_ms: int | None = None,
    ) -> None:
        """Store a report in place of the pipeline's previous one."""
        self._reports.pop(pipeline, None)
        if valid_for_ms <= 0:
            return
        self._reports[pipeline] = Report(
            pipeline=pipeline,
            reported_at_ms=now_ms,
            valid_until_ms=now_ms + min(valid_for_ms, VALID_MS_MAX),
            round_ended_at_ms=_at(now_ms, round_ended_ago_ms),
            ledgers=tuple(_facts(pipeline, row, now_ms) for row in rows),
        )
        if len(self._reports) > PIPELINES_MAX:
            del self._reports[next(iter(self._reports))]

    def current(self, now_ms: int) -> list[Report]:
        """Return the valid reports, the newest last, and forget the others."""
        self._reports = {
            name: report for name, report in self._reports.items() if now_ms < report.valid_until_ms
        }
        return list(self._reports.values())

    def ledgers(self, now_ms: int) -> list[LedgerFacts]:
        """Return each ledger once, from the newest report.

        A restarted pipeline reports under a new name, while its last report before that is still
        valid. So a configured name stands for one ledger, unless the reports give it two UUIDs.
        """
        found: dict[tuple[str, str], LedgerFacts] = {}
        for report in self.current(now_ms):
            for facts in report.ledgers:
                found.pop((facts.name, ""), None)
                if not facts.uuid:
                    for name, uuid in [key for key in found if key[0] == facts.name]:
                        del found[name, uuid]
                found[facts.name, facts.uuid] = facts
        return list(found.values())

    def reached(self, now_ms: int) -> frozenset[str]:
        """Return the UUIDs of the ledgers that some pipeline reaches."""
        return frozenset(
            facts.uuid
            for report in self.current(now_ms)
            for facts in report.ledgers
            if facts.is_reachable and facts.uuid
        )


def _facts(pipeline: str, row: LedgerReportRow, now_ms: int) -> LedgerFacts:
    return LedgerFacts(
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
