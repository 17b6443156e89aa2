"""Reports a broker's comparison to the broker, which shows it and raises the alert."""

from __future__ import annotations

import time
from collections.abc import Sequence

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.compare.checkpoint import Difference
from escrowmq.pipeline.compare.planning import BrokerPart
from escrowmq.protocol.native.comparisons import (
    DIFFERENCES_MAX,
    DifferenceRow,
    ReportComparisonHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import STATES

log = event_log(__name__)

ANSWER_S = 3.0
"""Timeout of a report. The next round reports again."""


def send(
    part: BrokerPart, report: ReportComparisonHeader, differences: Sequence[Difference]
) -> None:
    """Send the report. An undelivered report does not fail the round."""
    now_ms = time.time_ns() // 1_000_000
    rows = [_row(one, now_ms) for one in differences[:DIFFERENCES_MAX]]
    if report.differences:
        log.error(
            "state_store_differs",
            extra={"broker": part.name, "differences": report.differences},
        )
    address = part.pin.address
    try:
        with NativeCalls(address, connect_s=ANSWER_S, answer_s=ANSWER_S) as calls:
            calls.call(NativeCode.REPORT_COMPARISON, report, rows)
    except EscrowError as error:
        log.warning("comparison_report_not_taken", extra={"broker": address, "why": str(error)})


def _row(one: Difference, now_ms: int) -> DifferenceRow:
    is_count = one.finding == FindingName.COUNT_DIFFERS.value
    return DifferenceRow(
        finding=one.finding,
        half_offset=one.half_offset,
        message_count=one.message_count,
        recorded=_label(one.recorded),
        listed=str(one.listed) if is_count else _label(one.listed),
        found_ago_ms=max(now_ms - one.found_at_ms, 0),
    )


def _label(state: int) -> str:
    return STATES[state].label if 0 <= state < len(STATES) else ""
