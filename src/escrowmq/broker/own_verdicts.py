"""Verdicts of the pipeline, in bulk: each is obeyed on its own, and all are answered together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.broker.own_calls import Call, own_handlers
from escrowmq.model.errors import RequestRefused
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_rows import VerdictRow
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.broker.broker import Broker
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import ByHeader

BY = "settle"
"""Who decides by a verdict, if it does not say."""


class OwnVerdicts:
    """Handles OBEY_VERDICTS."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """By request code."""
        return own_handlers(self._broker, {OwnCode.OBEY_VERDICTS: self.obey})

    def obey(self, call: Call[ByHeader]) -> None:
        """Do what each says; a request without any still says that the pipeline is there."""
        by = call.header.by or BY
        verdicts = [_verdict(row, by) for row in call.rows(VerdictRow)]
        self._broker.vitals.verdict_at_ms = self._broker.clock.now_ms()
        outcomes: list[str] = [""] * len(verdicts)
        left = len(verdicts)

        def answer() -> None:
            call.answer([[verdict.half_offset for verdict in verdicts], outcomes])

        def told(at: int) -> Callable[[VerdictOutcome], None]:
            def note(outcome: VerdictOutcome) -> None:
                nonlocal left
                outcomes[at] = outcome.value
                left -= 1
                if not left:
                    call.request.connection.settle()
                    answer()

            return note

        if not verdicts:
            answer()
            return
        call.request.connection.owe()
        for at, verdict in enumerate(verdicts):
            self._broker.checking.obey(verdict, told(at))


def _verdict(row: VerdictRow, by: str) -> Verdict:
    try:
        kind, state = VerdictKind(row.verdict), State(row.state)
    except ValueError as error:
        raise RequestRefused(
            "verdict_unknown",
            f"one of {', '.join(VerdictKind)}, and a state from 0 to {max(State)}",
            half_offset=row.half_offset,
            cause=str(error),
        ) from None
    return Verdict(
        half_offset=row.half_offset,
        kind=kind,
        state=state,
        checks_sent=row.checks_sent,
        by=by,
        reason=row.reason or "",
    )
