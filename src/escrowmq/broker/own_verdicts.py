"""Verdicts of the pipeline, in bulk: each is obeyed on its own, and all are answered together.

Nearly all of them end transactions of one message. Those go through the writer as columns, one
slice at a time, so that other clients get their turn in between. The remaining verdicts go one by
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.broker.bulk import Bulk, Ends
from escrowmq.broker.checking import outcome_of_error
from escrowmq.broker.own_calls import Call, own_handlers
from escrowmq.model.errors import RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_rows import VerdictRow
from escrowmq.transaction.commands import (
    Decision,
    Ended,
    Obeyed,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.states import STATES, Resolution, State

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.requests import Handlers
    from escrowmq.model.message_columns import Numbers
    from escrowmq.protocol.own_columns import BodyColumns
    from escrowmq.protocol.own_headers import ByHeader

log = event_log(__name__)

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


class OwnVerdicts:
    """Handles OBEY_VERDICTS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return own_handlers(self._broker, {OwnCode.OBEY_VERDICTS: self.obey})

    def obey(self, call: Call[ByHeader]) -> None:
        """Obey each verdict; a request without verdicts still shows that the pipeline is there."""
        obeying = _Obeying(self._broker, call, call.columns(VerdictRow))
        self._broker.vitals.verdict_at_ms = self._broker.clock.monotonic_ms()
        obeying.start()


class _Obeying:
    """The verdicts of one request."""

    def __init__(self, broker: Broker, call: Call[ByHeader], rows: BodyColumns) -> None:
        self._broker = broker
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
        lineage, header = broker.store.core.lineage, call.header
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
        Bulk(self._broker.writer, commands, self._ended, slice_max=1).start()

    def _ended(self, ends: Ends) -> None:
        left = [self._others]
        for part, end in zip(self._slices, ends, strict=True):
            if not isinstance(end, Decision):
                self._outcomes[part] = _CODES[outcome_of_error(end)]
                continue
            reply = end.reply
            assert isinstance(reply, Obeyed)
            codes = np.frombuffer(reply.ends, dtype=np.uint8)
            self._outcomes[part] = _OF_ENDED[codes]
            left.append(part[codes == Ended.LEFT])
            for at in part[reply.contradicted].tolist():
                self._broker.checking.note_stale(
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

        self._broker.checking.obey([self._verdict(at) for at in places.tolist()], told)

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
        request.connection.settle()
        verdicts = self._broker.counts.verdicts
        for outcome, count in zip(_OUTCOMES, np.bincount(self._outcomes).tolist(), strict=False):
            if count:
                verdicts[outcome.value] += count
        try:
            self._call.answer([self._half_offsets, _NAMES[self._outcomes]])
        except Exception as error:  # noqa: BLE001 - the writer must go on
            request.decline(error)
