"""OBEY_VERDICTS: verdicts of a pipeline, in bulk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from escrowmq.broker.checks.obeying import (
    ASK,
    CODES,
    KINDS,
    OUTCOMES,
    PARK,
    VerdictColumns,
    VerdictExecutor,
)
from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.ledger_reports import PipelineSigns
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.guard import guarded
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message_columns import Numbers
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.native.headers import ByHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.store.store import Store
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.rules import ParkReason
from escrowmq.transaction.states import State

BY = "settle"
"""Recorded as the decider if the request names none."""

_BY_TIME = frozenset(reason.value for reason in ParkReason)
_NAMES = np.array([outcome.value for outcome in OUTCOMES], dtype=object)


@dataclass(frozen=True, slots=True)
class NativeVerdicts:
    """Handles OBEY_VERDICTS."""

    store: Store
    clock: BrokerClock
    executor: VerdictExecutor
    signs: PipelineSigns
    #: Whether the broker itself looks up this ledger.
    looks_up: Callable[[str], bool]

    @handles(NativeCode.OBEY_VERDICTS)
    def obey(self, call: Call[ByHeader]) -> None:
        """Obey each verdict; a request without verdicts still shows that the pipeline is there."""
        verdicts = _columns(call)
        self.signs.verdict_at_ms = self.clock.monotonic_ms()
        connection = call.request.connection
        connection.owe()

        def told(outcomes: Numbers) -> None:
            connection.answered()
            answer = [verdicts.half_offsets, _NAMES[outcomes]]
            guarded(call.request.decline, call.answer, answer)

        header = call.header
        if header.epoch and not self.store.core.lineage.holds(header.epoch, header.log_end):
            # The verdicts were computed from another history of the store, so none applies here.
            stale = CODES[VerdictOutcome.STALE]
            self.executor.counts.verdicts[VerdictOutcome.STALE.value] += len(verdicts.kinds)
            told(np.full(len(verdicts.kinds), stale, dtype=np.uint8))
            return
        is_ours = self._are_ours(verdicts)
        left = np.flatnonzero(~is_ours)

        def obeyed(outcomes: Numbers) -> None:
            every = np.full(len(is_ours), CODES[VerdictOutcome.BUSY], dtype=np.uint8)
            every[left] = outcomes
            told(every)

        self.executor.obey(verdicts.taken(left), obeyed)

    def _are_ours(self, verdicts: VerdictColumns) -> Numbers:
        """Return which ASK and PARK verdicts to answer with BUSY instead of obeying them.

        Checks may be off. Or the broker looks up the transaction's ledger itself: a pipeline that
        does not reach this ledger would ask producers and then park the transaction.
        """
        found = np.zeros(len(verdicts.kinds), dtype=np.bool_)
        core = self.store.core
        is_off = core.policy.checked_by == "off"
        for at in np.flatnonzero(np.isin(verdicts.kinds, (ASK, PARK))).tolist():
            reason = verdicts.reasons[at] if verdicts.kinds[at] == PARK else ParkReason.EXHAUSTED
            if is_off:
                found[at] = reason in _BY_TIME
            elif reason == ParkReason.EXHAUSTED:
                half = core.half(int(verdicts.half_offsets[at]))
                ledger = "" if half is None else core.names.origins[half.origin].ledger
                found[at] = self.looks_up(ledger)
        return found


def _columns(call: Call[ByHeader]) -> VerdictColumns:
    rows = call.columns(VerdictRow)
    kinds, states = rows.codes("verdict", KINDS), rows.numbers("state")
    half_offsets = rows.numbers("half_offset")
    is_wrong = (kinds < 0) | (states < 0) | (states > max(State))
    if is_wrong.any():
        at = int(np.argmax(is_wrong))
        raise RequestRefused(
            "verdict_unknown",
            f"one of {', '.join(VerdictKind)}, and a state from 0 to {max(State)}",
            half_offset=int(half_offsets[at]),
            state=int(states[at]),
        )
    # Only verdicts that park have a reason.
    has_reasons = bool((kinds == PARK).any())
    return VerdictColumns(
        half_offsets=half_offsets,
        kinds=kinds,
        states=states,
        checks_sent=rows.numbers("checks_sent"),
        reasons=rows.values("reason") if has_reasons else [],
        by=call.header.by or BY,
    )
