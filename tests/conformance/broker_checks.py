"""The fourth level of scenarios: a broker behind sockets that checks by itself, without a settler.

Its rounds run only when a scenario says so, and its ledger gives the answer that a scenario names.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.look_up.messages import Known, LookUpAnswer, LookUpRequest, ProbedLedger
from escrowmq.protocol.native.ledgers import LedgerReportRow
from escrowmq.testing.settler import CheckableTransaction, Round
from escrowmq.transaction.rules import Due, due
from escrowmq.transaction.states import State
from tests.conformance.broker_level import BrokerLevel
from tests.unit.broker.wire import eventually

LEDGER = "uuid"
"""The ledger that scenarios name."""
_OUTCOMES = {
    Resolution.COMMIT: LedgerOutcome.COMMITTED,
    Resolution.ROLLBACK: LedgerOutcome.ROLLED_BACK,
    Resolution.UNKNOWN: LedgerOutcome.UNKNOWN,
}
_ENDED = {
    State.COMMITTED: VerdictOutcome.COMMITTED,
    State.ROLLED_BACK: VerdictOutcome.ROLLED_BACK,
    State.PARKED: VerdictOutcome.PARKED,
}


class ToldLedger:
    """A look-up process whose ledger always gives the same answer."""

    names = ("shop",)

    def __init__(self) -> None:
        self.outcome = LedgerOutcome.UNKNOWN

    async def known(self) -> Known:
        """Return the one ledger, which can be reached."""
        report = LedgerReportRow(name="shop", uuid=LEDGER, is_reachable=True)
        return Known(ledgers=(ProbedLedger(report=report),))

    async def look_up(self, request: LookUpRequest) -> LookUpAnswer:
        """Answer for each transaction."""
        count = len(request.transaction_ids)
        reason = "no_row" if self.outcome is LedgerOutcome.UNKNOWN else ""
        return LookUpAnswer(
            number=request.number, outcomes=[self.outcome] * count, reasons=[reason] * count
        )


class BrokerChecksLevel(BrokerLevel):
    """A broker that checks by itself, and its clients."""

    changes: ClassVar[dict[str, Any]] = {"policy": {"checked_by": "broker"}}

    def _start(self) -> None:
        super()._start()
        self._ledger = ToldLedger()
        self._run(self._look_ledgers_up())

    async def _look_ledgers_up(self) -> None:
        self._passes = self._server.broker.look_up_with(self._ledger)
        await self._passes.probe()

    async def _round(self) -> None:
        await self._server.broker.rounds.run()
        await eventually(lambda: not self._passes._passes)

    def check(self, answer: Resolution | None, outcome: Resolution | None) -> Round:
        """Run a round; producers and the ledger give these answers, or no producer is online."""
        self._ledger.outcome = _OUTCOMES[outcome or Resolution.UNKNOWN]
        before = self.undecided()
        producer = self._producer_that_is(online=answer is not None)
        self._run(self._round())
        did = self._server.broker.rounds.last.did
        asked = self._answer_checks(did[VerdictOutcome.ASKED.value], producer, answer)
        done = Round()
        for half in before:
            self._note(done, half, asked, is_offline=answer is None)
        assert len(done.no_producer) == did[VerdictOutcome.NO_PRODUCER.value]
        return done

    def _note(
        self, done: Round, half: CheckableTransaction, asked: Collection[int], *, is_offline: bool
    ) -> None:
        state = self.state(half.half_offset)
        if half.half_offset in asked:
            done.asked.append(half.half_offset)
        elif state in _ENDED:
            done.note(half.half_offset, _ENDED[state])
        elif is_offline and due(half.facts(), self.core.policy) is Due.ASK:
            done.no_producer.append(half.half_offset)
        else:
            done.waiting.append(half.half_offset)
