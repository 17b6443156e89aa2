"""REPORT_COMPARISON and LIST_COMPARISON: the pipeline's comparison of records and state store.

The last comparison is only in memory: after a restart, the pipeline's next round reports again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.requests import handles
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.model.event_log import event_log
from escrowmq.protocol.native.comparisons import (
    ComparisonRow,
    DifferenceRow,
    ListComparisonHeader,
    ReportComparisonHeader,
    ReportedComparison,
)
from escrowmq.protocol.native.requests import NativeCode

log = event_log(__name__)


@dataclass(slots=True)
class Comparisons:
    """Handles both requests; a report replaces the last one, also that of another pipeline."""

    clock: BrokerClock
    #: None before the first report.
    last: ReportedComparison | None = None
    #: In the order of the report.
    differences: tuple[ComparisonRow, ...] = ()

    @handles(NativeCode.REPORT_COMPARISON)
    def report(self, call: Call[ReportComparisonHeader]) -> None:
        """Take the report of a pipeline's round."""
        before = self.last
        self._put(call.header, call.rows(DifferenceRow))
        last = self.last
        assert last is not None
        if last.differences and (before is None or before.differences < last.differences):
            log.error(
                "state_store_differs",
                extra={
                    "differences": last.differences,
                    "first": self.first_difference,
                    "pipeline": last.pipeline,
                },
            )
        call.answer()

    @handles(NativeCode.LIST_COMPARISON)
    def comparison(self, call: Call[ListComparisonHeader]) -> None:
        """List the last comparison, once for each of its differences."""
        rows = self.rows

        def column(name: str) -> list[object]:
            return [getattr(row, name) for row in rows]

        call.answer_list({name: partial(column, name) for name in call.wanted_columns})

    def _put(self, header: ReportComparisonHeader, rows: Sequence[DifferenceRow]) -> None:
        now_ms = self.clock.now_ms()
        told = _shared(header) | {"differences": max(header.differences, len(rows))}
        compared_at_ms = now_ms - max(header.ended_ago_ms, 0)
        self.last = last = ReportedComparison(compared_at_ms=compared_at_ms, **told)
        self.differences = tuple(_row(last, one, now_ms) for one in rows)

    @property
    def rows(self) -> Sequence[ComparisonRow]:
        """One row for each difference, or one without any; none before the first report."""
        if self.differences or self.last is None:
            return self.differences
        return (ComparisonRow(**msgspec.structs.asdict(self.last)),)

    @property
    def first_difference(self) -> str:
        """The first difference as text; empty if there is none."""
        if not self.differences:
            return ""
        first = self.differences[0]
        states = f"records: {first.recorded or 'none'}, state store: {first.listed or 'none'}"
        return f"{first.finding} at half offset {first.half_offset} ({states})"


def _row(last: ReportedComparison, one: DifferenceRow, now_ms: int) -> ComparisonRow:
    found_at_ms = now_ms - max(one.found_ago_ms, 0)
    return ComparisonRow(**msgspec.structs.asdict(last), found_at_ms=found_at_ms, **_shared(one))


def _shared(told: ReportComparisonHeader | DifferenceRow) -> dict[str, Any]:
    """The fields of a report that are columns of a list, too."""
    fields = msgspec.structs.asdict(told)
    return {name: fields[name] for name in ComparisonRow.__struct_fields__ if name in fields}
