"""Stands for a pipeline beside a broker: it reads facts, and sends its verdicts later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from escrowmq.client.ledger.checks import Question
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.ledger_outcome import MAYBE_SWEPT, LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.native.ledgers import LedgerReportRow, ReportLedgersHeader
from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import ManualClock
from escrowmq.testing.settler import CheckableTransaction, Settler
from escrowmq.testing.settler_process import BrokerPort
from escrowmq.transaction.commands import Verdict

NAME = "host/1"
RESOLUTIONS = {
    LedgerOutcome.COMMITTED: Resolution.COMMIT,
    LedgerOutcome.ROLLED_BACK: Resolution.ROLLBACK,
    LedgerOutcome.UNKNOWN: Resolution.UNKNOWN,
}


class HeldBackVerdicts(BrokerPort):
    """Settle port of a broker that holds verdicts back until they are sent."""

    def __init__(self, calls: NativeCalls) -> None:
        super().__init__(calls)
        self._verdicts: Sequence[Verdict] = ()

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        self._verdicts = verdicts
        return [VerdictOutcome.UNKNOWN] * len(verdicts)

    def send(self) -> Sequence[VerdictOutcome]:
        return super().obey(self._verdicts)


class LatePipeline:
    """A pipeline with its own connection and, if it is given, a ledger."""

    def __init__(self, address: str, clock: ManualClock, ledger: SqlLedger | None) -> None:
        self._calls = NativeCalls(address)
        self._clock = clock
        self._ledger = ledger
        self._ended_at_ms: int | None = None
        self._began_at_ms: int | None = None
        self._port: HeldBackVerdicts | None = None

    @property
    def is_in_round(self) -> bool:
        return self._port is not None

    async def beat(self, *, is_last: bool = False) -> str:
        """Send a heartbeat; return which process checks."""
        header = HeartbeatHeader(
            pipeline=NAME,
            round_ended_ago_ms=self._ago_ms(self._ended_at_ms),
            round_running_ms=self._ago_ms(self._began_at_ms),
            round_ms_max=600_000,
            is_last=is_last,
        )
        told = await asyncio.to_thread(self._calls.call, NativeCode.PIPELINE_HEARTBEAT, header)
        return str(told.header.checker)

    async def report(self, *reached: str) -> None:
        """Tell the broker which ledgers this pipeline reaches."""
        rows = [LedgerReportRow(name="shop", uuid=one, is_reachable=True) for one in reached]
        header = ReportLedgersHeader(pipeline=NAME)
        await asyncio.to_thread(self._calls.call, NativeCode.REPORT_LEDGERS, header, rows)

    async def begin_round(self) -> None:
        """Read facts and ledgers, and compute verdicts."""
        self._began_at_ms = self._clock.monotonic_ms()
        self._port = HeldBackVerdicts(self._calls)
        await asyncio.to_thread(self._compute, self._port)

    async def end_round(self) -> Sequence[VerdictOutcome]:
        """Send the verdicts of the round that began."""
        assert self._port is not None
        port, self._port, self._began_at_ms = self._port, None, None
        outcomes = await asyncio.to_thread(port.send)
        self._ended_at_ms = self._clock.monotonic_ms()
        return outcomes

    def drop_round(self) -> None:
        """Fail the round that began: its verdicts are never sent."""
        self._port = self._began_at_ms = None

    def close(self) -> None:
        self._calls.close()

    def _compute(self, port: HeldBackVerdicts) -> None:
        look_up = None if self._ledger is None else self._looked_up
        Settler(port, port.policy(), look_up).run_once()

    def _looked_up(self, half: CheckableTransaction) -> Resolution | str:
        assert self._ledger is not None
        assert self._port is not None
        now_ms = self._clock.now_ms()
        deadline_at_ms = now_ms - half.age_ms + half.allowed_ms
        question = Question(half.transaction_id, half.group, deadline_at_ms, half.half_offset)
        answers = self._ledger.resolve(
            [question], ledger_uuid=half.ledger, now_ms=now_ms, sight=self._port.sight
        )
        answer = answers[half.transaction_id]
        return MAYBE_SWEPT if answer.reason == MAYBE_SWEPT else RESOLUTIONS[answer.outcome]

    def _ago_ms(self, at_ms: int | None) -> int | None:
        return None if at_ms is None else self._clock.monotonic_ms() - at_ms
