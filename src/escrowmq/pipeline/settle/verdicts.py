"""Sends verdicts to brokers in full requests, and counts their outcomes.

A task does not try an unreachable broker again. It counts the broker's verdicts as unknown, and the
next round looks again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.model.lineage import Sight
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.pipeline.settle.rows import REASON, UNTOLD, CountKey, Tallies
from escrowmq.pipeline.views.facts import (
    AGE_MS,
    BROKER,
    CHECKS_SENT,
    HALF_OFFSET,
    PRODUCER_GROUP,
    STATE_CODE,
    TRANSACTION_ID,
)
from escrowmq.protocol.native.headers import ByHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.transaction.commands import VerdictKind

VERDICT = "verdict"
OUTCOME = "outcome"
#: How many parked transactions one task reports by name. All are counted.
PARKED_MAX = 20
BROKER_FAILED = "broker_failed"

_SENT = (HALF_OFFSET, VERDICT, STATE_CODE, CHECKS_SENT, REASON)
#: The request's names for these columns.
_FIELDS = list(VerdictRow.__struct_fields__)
_KEPT = (*_SENT, TRANSACTION_ID, PRODUCER_GROUP, AGE_MS)


class VerdictSender:
    """One task's connections to brokers."""

    def __init__(self, tallies: Tallies, sights: Mapping[str, Sight]) -> None:
        self._tallies = tallies
        #: Each broker's history, taken before the facts were read.
        self._sights = sights
        self._calls: dict[str, NativeCalls] = {}
        self._open = ExitStack()
        self._waiting: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        #: Why nothing more is sent to a broker, by broker.
        self._away: dict[str, str] = {}
        #: Some of the parked transactions, with the facts for an alert.
        self.parked: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def put_all(self, rows: pa.RecordBatch, kind: VerdictKind, reason: str = "") -> None:
        """Give all rows the same verdict; `reason` names the column that says why."""
        reasons = rows.column(reason).to_pylist() if reason else [None] * rows.num_rows
        self.put(rows, [kind.value] * rows.num_rows, reasons)

    def put(
        self, rows: pa.RecordBatch, verdicts: Sequence[str | None], reasons: Sequence[str | None]
    ) -> None:
        """Queue verdicts on rows, skipping nulls. They are sent when a request is full."""
        made = {VERDICT: pa.array(verdicts, pa.string()), REASON: pa.array(reasons, pa.string())}
        judged = pa.RecordBatch.from_arrays(
            [made[name] if name in made else rows.column(name) for name in (BROKER, *_KEPT)],
            names=[BROKER, *_KEPT],
        )
        judged = judged.filter(pc.is_valid(judged.column(VERDICT)))
        for broker in judged.column(BROKER).unique().to_pylist():
            mine = judged.filter(pc.equal(judged.column(BROKER), broker))
            self._waiting[broker].append(mine)
            self._send(broker, is_last=False)

    def flush(self) -> None:
        """Send the remaining verdicts."""
        for broker in self._waiting:
            self._send(broker, is_last=True)

    def _send(self, broker: str, *, is_last: bool) -> None:
        rows_max = NATIVE_REQUESTS[NativeCode.OBEY_VERDICTS].rows_max
        waiting = self._waiting[broker]
        if not is_last and sum(batch.num_rows for batch in waiting) < rows_max:
            return
        if not waiting:
            return
        batch = pa.concat_batches(waiting)
        at = 0
        while batch.num_rows - at >= (1 if is_last else rows_max):
            self._tell(broker, batch.slice(at, rows_max))
            at += rows_max
        self._waiting[broker] = [batch.slice(at)] if at < batch.num_rows else []

    def _tell(self, broker: str, batch: pa.RecordBatch) -> None:
        if broker not in self._away:
            try:
                sent = batch.select(list(_SENT)).rename_columns(_FIELDS)
                answer = self._called(broker).call_arrow(
                    NativeCode.OBEY_VERDICTS, self._header(broker), sent
                )
            except EscrowError as error:
                self._away[broker] = error.code
            else:
                outcomes = answer.batch.column(OUTCOME)
                for one in outcomes.value_counts().to_pylist():
                    is_unknown = one["values"] == VerdictOutcome.UNKNOWN.value
                    reason = BROKER_FAILED if is_unknown else ""
                    self._tallies[CountKey(broker, one["values"], reason)] += one["counts"]
                is_parked = pc.equal(outcomes, VerdictOutcome.PARKED.value)
                self._note_parked(broker, batch.filter(is_parked))
                return
        self._tallies[CountKey(broker, UNTOLD, self._away[broker])] += batch.num_rows

    def _header(self, broker: str) -> ByHeader:
        sight = self._sights.get(broker)
        if sight is None:
            return ByHeader()
        return ByHeader(epoch=sight.lineage.epoch, log_end=sight.log_end)

    def _called(self, broker: str) -> NativeCalls:
        if broker not in self._calls:
            self._calls[broker] = self._open.enter_context(NativeCalls(broker))
        return self._calls[broker]

    def _note_parked(self, broker: str, parked: pa.RecordBatch) -> None:
        room = PARKED_MAX - len(self.parked)
        names = [HALF_OFFSET, TRANSACTION_ID, PRODUCER_GROUP, AGE_MS, REASON]
        facts = parked.slice(0, max(room, 0)).select(names).to_pylist()
        self.parked += [{BROKER: broker, **row} for row in facts]
