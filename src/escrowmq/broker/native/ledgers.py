"""REPORT_LEDGERS and LIST_LEDGERS: ledgers that are in a report, or that transactions name.

Pipelines send reports. The broker adds its own if it looks ledgers up itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest

import msgspec

from escrowmq.broker.native.calls import Call, looks
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.ledger_reports import LedgerReports
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.protocol.native.headers import NativeHeader
from escrowmq.protocol.native.ledgers import LedgerReportRow, LedgerRow, ReportLedgersHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.store import Store
from escrowmq.store.table.undecided import prepared_by_origin

UNREPORTED_MAX = 256
"""Most listed ledgers that transactions name and no report has."""


@dataclass(frozen=True, slots=True)
class NativeLedgers:
    """Handles REPORT_LEDGERS and LIST_LEDGERS."""

    store: Store
    clock: BrokerClock
    reports: LedgerReports

    @handles(NativeCode.REPORT_LEDGERS)
    def report(self, call: Call[ReportLedgersHeader]) -> None:
        """Take a pipeline's report about its ledgers."""
        self.reports.put(
            call.header.pipeline,
            call.rows(LedgerReportRow),
            now_ms=self.clock.monotonic_ms(),
            valid_for_ms=call.header.valid_for_ms,
        )
        call.answer()

    @looks(NativeCode.LIST_LEDGERS)
    def ledgers(self, call: Call[NativeHeader]) -> None:
        """List the ledgers that a report has or undecided transactions name."""
        prepared = prepared_by_origin(self.store.table)
        seen = ledgers_seen(self.store, self.clock, self.reports, prepared)
        listed = seen.rows[: call.spec.answer_rows_max]
        names = LedgerRow.__struct_fields__
        call.answer_rows(
            [tuple(getattr(row, name) for name in names) for row in listed],
            pipelines=seen.pipelines,
            left_out=seen.left_out + len(seen.rows) - len(listed),
        )


class LedgersSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers that a report has or undecided transactions name."""

    #: Reported ledgers come first, and the unreachable ones first among them.
    rows: list[LedgerRow]
    #: Ledgers that transactions name and that are missing in the rows.
    left_out: int
    #: Pipelines whose reports are still valid.
    pipelines: int
    #: Undecided transactions whose ledger neither a pipeline nor the broker reaches; 0 without a
    #: report.
    undecided_without_ledger: int


def _by_ledger(store: Store, prepared: Mapping[int, int]) -> Counter[str]:
    """Count undecided transactions by the UUID of their ledger."""
    origins = store.core.names.origins.all_of(prepared)
    counts: Counter[str] = Counter()
    for origin, count in zip(origins, prepared.values(), strict=True):
        if origin.ledger:
            counts[origin.ledger] += count
    return counts


def ledgers_seen(
    store: Store, clock: BrokerClock, reports: LedgerReports, prepared: Mapping[int, int]
) -> LedgersSeen:
    """Join the ledgers of all valid reports with those that transactions name.

    ``prepared`` counts by origin the transactions that may be back-checked.
    """
    undecided = _by_ledger(store, prepared)
    now_ms = clock.monotonic_ms()
    reported = reports.ledgers(now_ms)
    pipelines = len(reports.current(now_ms))
    rows = [_row(clock, facts, undecided[facts.uuid]) for facts in reported]
    rows.sort(key=lambda row: (row.is_reachable, -row.undecided, row.name, row.uuid))
    reached = {row.uuid for row in rows if row.is_reachable}
    stuck = sum(count for uuid, count in undecided.items() if uuid not in reached)
    known = {facts.uuid for facts in reported}
    others = [(-count, uuid) for uuid, count in undecided.items() if uuid not in known]
    largest = nsmallest(UNREPORTED_MAX, others)
    return LedgersSeen(
        rows=rows + [LedgerRow(uuid=uuid, undecided=-less) for less, uuid in largest],
        left_out=len(others) - len(largest),
        pipelines=pipelines,
        undecided_without_ledger=stuck if pipelines or reports.of_broker(now_ms) is not None else 0,
    )


def _row(clock: BrokerClock, facts: LedgerRow, undecided: int) -> LedgerRow:
    def store_time(at_ms: int | None) -> int | None:
        return None if at_ms is None else clock.ago_ms(at_ms)

    return msgspec.structs.replace(
        facts,
        reported_at_ms=store_time(facts.reported_at_ms),
        succeeded_at_ms=store_time(facts.succeeded_at_ms),
        failed_at_ms=store_time(facts.failed_at_ms),
        undecided=undecided if facts.uuid else 0,
    )
