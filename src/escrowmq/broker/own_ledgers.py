"""REPORT_LEDGERS and LIST_LEDGERS: ledgers that pipelines report or transactions name."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from typing import TYPE_CHECKING

import msgspec

from escrowmq.broker.own_calls import Call, own_handlers, own_questions
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_ledgers import LedgerReportRow, LedgerRow
from escrowmq.store.undecided import prepared_by_origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from escrowmq.broker.broker import Broker
    from escrowmq.broker.ledger_reports import LedgerFacts
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import OwnHeader
    from escrowmq.protocol.own_ledgers import ReportLedgersHeader

UNREPORTED_MAX = 256
"""Most listed ledgers that transactions name and no pipeline reported."""


class OwnLedgers:
    """Handles REPORT_LEDGERS and LIST_LEDGERS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return {
            **own_handlers(self._broker, {OwnCode.REPORT_LEDGERS: self.report}),
            **own_questions(self._broker, {OwnCode.LIST_LEDGERS: self.ledgers}),
        }

    def report(self, call: Call[ReportLedgersHeader]) -> None:
        """Take a pipeline's report about its ledgers."""
        header, broker = call.header, self._broker
        broker.ledger_reports.put(
            header.pipeline,
            call.rows(LedgerReportRow),
            now_ms=broker.clock.monotonic_ms(),
            valid_for_ms=header.valid_for_ms,
            round_ended_ago_ms=header.round_ended_ago_ms,
        )
        call.answer()

    def ledgers(self, call: Call[OwnHeader]) -> None:
        """List the ledgers that pipelines reported or undecided transactions name."""
        seen = ledgers_seen(self._broker, prepared_by_origin(self._broker.store.table))
        listed = seen.rows[: call.spec.answer_rows_max]
        names = LedgerRow.__struct_fields__
        call.answer_rows(
            [tuple(getattr(row, name) for name in names) for row in listed],
            pipelines=seen.pipelines,
            left_out=seen.left_out + len(seen.rows) - len(listed),
        )


class LedgersSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The ledgers that pipelines reported or undecided transactions name."""

    #: Reported ledgers come first, and the unreachable ones first among them.
    rows: list[LedgerRow]
    #: Ledgers that transactions name and that are missing in the rows.
    left_out: int
    #: Pipelines whose reports are still valid.
    pipelines: int
    #: Undecided transactions whose ledger no pipeline reaches; 0 if no pipeline reports.
    undecided_without_ledger: int


def _by_ledger(broker: Broker, prepared: Mapping[int, int]) -> Counter[str]:
    """Count undecided transactions by the UUID of their ledger."""
    origins = broker.store.core.names.origins.all_of(prepared)
    counts: Counter[str] = Counter()
    for origin, count in zip(origins, prepared.values(), strict=True):
        if origin.ledger:
            counts[origin.ledger] += count
    return counts


def ledgers_seen(broker: Broker, prepared: Mapping[int, int]) -> LedgersSeen:
    """Join the ledgers that pipelines reported with those that transactions name.

    ``prepared`` counts undecided transactions by origin.
    """
    undecided = _by_ledger(broker, prepared)
    now_ms = broker.clock.monotonic_ms()
    reported = broker.ledger_reports.ledgers(now_ms)
    pipelines = len(broker.ledger_reports.current(now_ms))
    rows = [_row(broker, facts, undecided[facts.uuid]) for facts in reported]
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
        undecided_without_ledger=stuck if pipelines else 0,
    )


def _row(broker: Broker, facts: LedgerFacts, undecided: int) -> LedgerRow:
    def store_time(at_ms: int | None) -> int | None:
        return None if at_ms is None else broker.clock.ago_ms(at_ms)

    return LedgerRow(
        uuid=facts.uuid,
        name=facts.name,
        pipeline=facts.pipeline,
        is_reachable=facts.is_reachable,
        error=facts.error,
        error_text=facts.error_text,
        reported_at_ms=store_time(facts.reported_at_ms),
        succeeded_at_ms=store_time(facts.succeeded_at_ms),
        failed_at_ms=store_time(facts.failed_at_ms),
        uuid_before=facts.uuid_before,
        undecided=undecided if facts.uuid else 0,
    )
