"""What pipelines report about ledgers, for as long as the reports count.

Reports are in memory only: after a restart the next round of each pipeline brings them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.protocol.limits import SHOWN_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.protocol.own_ledgers import LedgerReportRow

PIPELINES_MAX = 16
"""Pipelines whose reports are kept; the one that was silent for longest goes first."""

VALID_MS_MAX = 600_000
"""No report counts for longer than this, whatever its pipeline says."""


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline found out about a ledger; times are the broker's monotonic clock."""

    #: NAME of the section `[ledger.NAME]`.
    name: str
    #: Empty if its database never told it.
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
    """All that one pipeline said at once."""

    pipeline: str
    reported_at_ms: int
    valid_until_ms: int
    #: When its last settle round of this broker ended.
    round_ended_at_ms: int | None
    ledgers: tuple[LedgerFacts, ...]


class LedgerReports:
    """The reports that a broker holds; every question says what time it is."""

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
        """Take a report in place of the last one of the same pipeline."""
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
        """Reports that count, the newest last; the others are forgotten."""
        self._reports = {
            name: report for name, report in self._reports.items() if now_ms < report.valid_until_ms
        }
        return list(self._reports.values())

    def ledgers(self, now_ms: int) -> list[LedgerFacts]:
        """Each ledger once, as the newest report has it.

        A pipeline that was restarted reports under another name, and its last report before that
        counts for a while: a configured name stands for one ledger, unless two UUIDs are known.
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
        """UUIDs of the ledgers that some pipeline reaches."""
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
