"""Verdicts of the pipeline, in bulk: each is obeyed on its own, and all are answered together.

Nearly all of them end transactions of one message. Those go through the writer as columns, one
slice at a time, so that other clients get their turn in between. The remaining verdicts go one by
one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from escrowmq.broker.checks.checking import Checking, outcome_of_error
from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.answering import reply_of
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.counting import BrokerCounts
from escrowmq.broker.state.ledger_reports import PipelineSigns
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.bulk import Bulk, Ends
from escrowmq.broker.write.guard import guarded
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message_columns import Numbers
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.columns import BodyColumns
from escrowmq.protocol.native.headers import ByHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.store.store import Store
from escrowmq.transaction.commands import (
    Decision,
    Ended,
    Obeyed,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.states import STATES, State

BY = "settle"
"""Recorded as the decider if the request names none."""
SLICE_ROWS = 2_048
"""Verdicts that are decided in one step: about 1 ms."""

_KINDS = tuple(VerdictKind)
_COMMIT, _ROLLBACK = _KINDS.index(VerdictKind.COMMIT), _KINDS.index(VerdictKind.ROLLBACK)
_OUTCOMES = tuple(VerdictOutcome)
_NAMES = np.array([outcome.value for outcome in _OUTCOMES], dtype=object)
_CODES = {outcome: code for code, outcome in enumerate(_OUTCOMES)}
#: Outcomes by the code of ``Ended``; the outcome of a verdict that was left is not known yet.
_OF_ENDED = np.array(
    [
        _CODES[VerdictOutcome.UNKNOWN if end is Ended.LEFT else VerdictOutcome(end.name.lower())]
        for end in Ended
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, slots=True)
class NativeVerdicts:
    """Handles OBEY_VERDICTS."""

    store: Store
    writer: Writer
    clock: BrokerClock
    checking: Checking
    counts: BrokerCounts
    signs: PipelineSigns

    @handles(NativeCode.OBEY_VERDICTS)
    def obey(self, call: Call[ByHeader]) -> None:
        """Obey each verdict; a request without verdicts still shows that the pipeline is there."""
        obeying = _Obeying(self, call, call.columns(VerdictRow))
        self.signs.verdict_at_ms = self.clock.monotonic_ms()
        obeying.start()


class _Obeying:
    """The verdicts of one request."""

    def __init__(self, parts: NativeVerdicts, call: Call[ByHeader], rows: BodyColumns) -> None:
        self._parts = parts
        self._call = call
        self._by = call.header.by or BY
        self._half_offsets = rows.numbers("half_offset")
        self._kinds = rows.codes("verdict", _KINDS)
        self._states = rows.numbers("state")
        self._checks_sent = rows.numbers("checks_sent")
        self._refuse_nonsense()
        is_ending = (self._kinds == _COMMIT) | (self._kinds == _ROLLBACK)
        endings = np.flatnonzero(is_ending)
        self._slices = [endings[at : at + SLICE_ROWS] for at in range(0, len(endings), SLICE_ROWS)]
        self._others = np.flatnonzero(~is_ending)
        #: Only verdicts that park have a reason.
        self._reasons = rows.values("reason") if len(self._others) else []
        self._outcomes = np.zeros(len(rows), dtype=np.uint8)
        lineage, header = parts.store.core.lineage, call.header
        if header.epoch and not lineage.holds(header.epoch, header.log_end):
            # The facts are from another history, so no verdict applies to this one.
            self._slices, self._others = [], self._others[:0]
            self._outcomes[:] = _CODES[VerdictOutcome.STALE]

    def _refuse_nonsense(self) -> None:
        is_wrong = (self._kinds < 0) | (self._states < 0) | (self._states > max(State))
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            raise RequestRefused(
                "verdict_unknown",
                f"one of {', '.join(VerdictKind)}, and a state from 0 to {max(State)}",
                half_offset=int(self._half_offsets[at]),
                state=int(self._states[at]),
            )

    def start(self) -> None:
        """Start with the verdicts that can be decided together."""
        self._call.request.connection.owe()
        commands = [
            Verdicts(
                half_offsets=self._half_offsets[part],
                commits=self._kinds[part] == _COMMIT,
                states=self._states[part],
                checks_sent=self._checks_sent[part],
                by=self._by,
            )
            for part in self._slices
        ]
        Bulk(self._parts.writer, commands, self._ended, slice_max=1).start()

    def _ended(self, ends: Ends) -> None:
        left = [self._others]
        for part, end in zip(self._slices, ends, strict=True):
            if not isinstance(end, Decision):
                self._outcomes[part] = _CODES[outcome_of_error(end)]
                continue
            reply = reply_of(end, Obeyed)
            codes = np.frombuffer(reply.ends, dtype=np.uint8)
            self._outcomes[part] = _OF_ENDED[codes]
            left.append(part[codes == Ended.LEFT])
            for at in part[reply.contradicted].tolist():
                self._parts.checking.note_stale(
                    int(self._half_offsets[at]),
                    Resolution(_KINDS[self._kinds[at]].value),
                    self._by,
                )
        self._obey_each(np.sort(np.concatenate(left)))

    def _obey_each(self, places: Numbers) -> None:
        if not len(places):
            self._answer()
            return

        def told(outcomes: list[VerdictOutcome]) -> None:
            self._outcomes[places] = [_CODES[outcome] for outcome in outcomes]
            self._answer()

        self._parts.checking.obey([self._verdict(at) for at in places.tolist()], told)

    def _verdict(self, at: int) -> Verdict:
        return Verdict(
            half_offset=int(self._half_offsets[at]),
            kind=_KINDS[self._kinds[at]],
            state=STATES[self._states[at]],
            checks_sent=int(self._checks_sent[at]),
            by=self._by,
            reason=((self._reasons[at] if self._reasons else None) or "")[:SHOWN_CHARS_MAX],
        )

    def _answer(self) -> None:
        request = self._call.request
        request.connection.answered()
        verdicts = self._parts.counts.verdicts
        for outcome, count in zip(_OUTCOMES, np.bincount(self._outcomes).tolist(), strict=False):
            if count:
                verdicts[outcome.value] += count
        columns = [self._half_offsets, _NAMES[self._outcomes]]
        guarded(request.decline, self._call.answer, columns)
