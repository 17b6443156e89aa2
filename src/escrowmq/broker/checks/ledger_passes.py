"""Looks up undecided transactions in the configured ledgers, through the look-up process.

A pass covers the due transactions of one ledger, a request at a time; while the process works on
one request, the broker prepares the next and obeys the verdicts of the last. Each ledger has at
most one pass under way, and rests after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import thread_time
from typing import NamedTuple, Protocol

import numpy as np

from escrowmq.broker.checks.due_plan import REASONS
from escrowmq.broker.checks.obeying import KINDS, VerdictExecutor, counted, verdicts_on
from escrowmq.broker.state.ledger_reports import LedgerReports
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.pace import BackgroundPace
from escrowmq.broker.write.questions import ask_between
from escrowmq.broker.write.writer import Writer
from escrowmq.model.errors import EscrowError, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight
from escrowmq.model.log_limit import LogLimit
from escrowmq.protocol.look_up.messages import ROWS_MAX, Known, LookUpAnswer, LookUpRequest
from escrowmq.protocol.native.ledgers import LedgerReportRow
from escrowmq.store.disk.rows import Rows
from escrowmq.store.reading.identities import identities
from escrowmq.store.store import Store
from escrowmq.transaction.ledger_verdicts import verdict_of
from escrowmq.transaction.rules import Due

log = event_log(__name__)

PROBE_S = 5.0
"""Pause between two probes of the databases."""
PROBED_FOR_MS = 60_000
"""How long the answers of the databases are shown and used after a probe."""
ROWS_BESIDE = 64
REST_BESIDE = 8
"""While clients send messages, a request has at most this many transactions. The pause after it is
this multiple of the time that the event loop's thread worked during the request."""
IDS_AT_ONCE = 1_000
"""Transaction ids that are read from the log in one turn of the event loop."""
AT_ONCE = 2
"""Requests of one pass that are under way: one in the process, one in the broker."""
REST_S = 1.0
REST_UNDECIDED_S = 5.0
"""Pause after a pass, and after one that decided nothing."""
LOST_ID = "transaction_id_lost"
"""The log no longer has the transaction's id, or it is no text, so no ledger can be asked."""


class LookUpPort(Protocol):
    """The look-up process."""

    @property
    def names(self) -> Collection[str]:
        """Names of the configured ledgers."""

    async def known(self) -> Known:
        """Ask every configured database which ledger it has."""

    async def look_up(self, request: LookUpRequest) -> LookUpAnswer:
        """Look up transactions in their ledger, and fence those that are absent and overdue."""


class DueInLedger(NamedTuple):
    """Due transactions of one ledger, as a round has read them."""

    heads: Rows
    #: Index in ``REASONS`` of why each is parked if its ledger gives no outcome; -1 if it is not.
    reasons: Rows
    #: The broker's history and its time, taken before the heads were read.
    sight: Sight
    as_of_ms: int

    def parts(self, pace: BackgroundPace) -> Iterator[DueInLedger]:
        """Yield parts that fit into one request; small ones while clients send messages."""
        at = 0
        while at < len(self.heads):
            here = slice(at, at + (ROWS_BESIDE if pace.is_in_use else ROWS_MAX))
            yield self._replace(heads=self.heads[here], reasons=self.reasons[here])
            at = here.stop


@dataclass(eq=False)
class LedgerPasses:
    """Passes over all configured ledgers. Use it from one event loop only."""

    store: Store
    writer: Writer
    clock: BrokerClock
    executor: VerdictExecutor
    reports: LedgerReports
    process: LookUpPort
    #: Transactions since the start, by outcome of their verdict or by the reason for none.
    did: Counter[str] = field(default_factory=Counter, init=False)
    _known: Known | None = field(default=None, init=False)
    _probes_at: float = field(default=0.0, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    _passes: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    _rests_until: dict[str, float] = field(default_factory=dict, init=False)
    _logged: LogLimit = field(
        default_factory=lambda: LogLimit(log, burst=1, window_s=60.0), init=False
    )

    @property
    def ledgers(self) -> frozenset[str]:
        """The UUIDs of the ledgers that can be looked up, now or later."""
        return frozenset() if self._known is None else frozenset(self._known.faults)

    @property
    def has_unnamed(self) -> bool:
        """Whether a configured database has not said yet which ledger it has."""
        return self._known is None or bool(self._known.unnamed)

    async def tick(self) -> None:
        """Probe the databases every few seconds; until a probe has succeeded, at every tick."""
        if self._known is None or self._loop.time() >= self._probes_at:
            self._probes_at = self._loop.time() + PROBE_S
            # The look-up process logs why it fails, and the ledgers are shown as unreachable.
            with suppress(Unavailable):
                await self.probe()

    async def probe(self) -> None:
        """Ask the databases which ledgers they have, and show the answers."""
        try:
            self._known = await self.process.known()
        except Unavailable as error:
            self._show(self._unreachable(error))
            raise
        self._show([one.report for one in self._known.ledgers])

    def _show(self, rows: Sequence[LedgerReportRow]) -> None:
        now_ms = self.clock.monotonic_ms()
        self.reports.put_of_broker(rows, now_ms=now_ms, valid_for_ms=PROBED_FOR_MS)

    def _unreachable(self, error: Unavailable) -> list[LedgerReportRow]:
        """Return the configured ledgers as unreachable, because the look-up process fails."""
        known = {} if self._known is None else {one.report.name: one for one in self._known.ledgers}
        return [
            LedgerReportRow(
                name=name,
                uuid=known[name].report.uuid if name in known else "",
                error=error.code,
                error_text=error.message,
                failed_ago_ms=0,
            )
            for name in self.process.names
        ]

    def look_up(self, ledger: str, due: DueInLedger) -> bool:
        """Start a pass over these transactions, unless one is under way or the ledger rests.

        Return whether it starts.
        """
        if ledger in self._passes or self._loop.time() < self._rests_until.get(ledger, 0.0):
            return False
        self._passes[ledger] = asyncio.create_task(self._pass(ledger, due))
        return True

    async def close(self) -> None:
        """End all passes."""
        passes = list(self._passes.values())
        for one in passes:
            one.cancel()
        await asyncio.gather(*passes, return_exceptions=True)

    async def _pass(self, ledger: str, due: DueInLedger) -> None:
        did: Counter[str] = Counter()
        parts = due.parts(self.writer.pace)

        async def work() -> None:
            # The workers share the iterator: each takes the next part.
            for part in parts:
                began = thread_time()
                await self._look_up_part(ledger, part, did)
                worked_s = thread_time() - began
                await asyncio.sleep(self.writer.pace.rest_s(REST_BESIDE * worked_s))

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(AT_ONCE):
                    workers.create_task(work())
        except* EscrowError as errors:
            why = str(errors.exceptions[0])
            self._logged.warning("look_up_failed", ledger, {"ledger": ledger, "why": why})
        except* Exception:
            log.exception("look_up_pass_failed", extra={"ledger": ledger})
        finally:
            self.did.update(did)
            del self._passes[ledger]
            has_decided = did["committed"] + did["rolled_back"] + did["parked"]
            rest_s = REST_S if has_decided else REST_UNDECIDED_S
            self._rests_until[ledger] = self._loop.time() + rest_s

    async def _look_up_part(self, ledger: str, due: DueInLedger, did: Counter[str]) -> None:
        answers = await self._answers(ledger, due)
        judged = [*zip(answers, due.reasons.tolist(), strict=True)]
        # Nearly all rows have one of a few answers, so the verdict on each answer is made once.
        verdicts = {one: _verdict(*one) for one in set(judged)}
        kinds = np.array([verdicts[one].kind for one in judged])
        did.update(verdicts[one].reason for one in judged if verdicts[one].kind < 0)
        rows = np.flatnonzero(kinds >= 0)
        if len(rows):
            reasons = [verdicts[judged[at]].reason for at in rows.tolist()]
            outcomes = await self.executor.obeyed(
                verdicts_on(due.heads[rows], kinds[rows], reasons)
            )
            did.update(counted(outcomes))

    async def _answers(self, ledger: str, due: DueInLedger) -> list[tuple[LedgerOutcome, str]]:
        fault = "" if self._known is None else self._known.faults.get(ledger, "")
        unknown = LedgerOutcome.UNKNOWN, fault or LOST_ID
        found: list[tuple[LedgerOutcome, str]] = [unknown] * len(due.heads)
        if fault:
            return found
        ids = await self._ids(due.heads)
        known = [at for at, one in enumerate(ids) if one is not None]
        if not known:
            return found
        heads = due.heads[known]
        numbers: list[int] = heads["origin"].tolist()
        named = {number: self.store.core.names.origins[number] for number in set(numbers)}
        request = LookUpRequest(
            ledger_uuid=ledger,
            sight=due.sight,
            as_of_ms=due.as_of_ms,
            half_offsets=heads["half_offset"].tolist(),
            transaction_ids=[one for one in ids if one is not None],
            producer_groups=[named[number].group for number in numbers],
            stored_at_ms=heads["stored_at_ms"].tolist(),
            allowed_ms=[named[number].allowed_ms for number in numbers],
        )
        answer = await self.process.look_up(request)
        for at, outcome, reason in zip(known, answer.outcomes, answer.reasons, strict=True):
            found[at] = outcome, reason
        return found

    async def _ids(self, heads: Rows) -> list[str | None]:
        """Read transaction ids from the log; None for those that it no longer has as text."""
        found: list[str | None] = []
        for at in range(0, len(heads), IDS_AT_ONCE):
            some = heads[at : at + IDS_AT_ONCE]

            def read(some: Rows = some) -> list[bytes]:
                return identities(self.store, some["half_offset"], some["location"])[0]

            found += [_text(one) for one in await ask_between(self.writer, read)]
        return found


class _Verdict(NamedTuple):
    """An index in ``KINDS``, or -1 for no verdict; and the reason to park, or for no verdict."""

    kind: int
    reason: str


def _verdict(answer: tuple[LedgerOutcome, str], park: int) -> _Verdict:
    outcome, reason = answer
    kind, why = verdict_of(
        outcome,
        reason,
        due_unanswered=(Due.WAIT if park < 0 else Due.PARK).value,
        park_reason=REASONS[park].value if park >= 0 else None,
    )
    return _Verdict(-1 if kind is None else KINDS.index(kind), why)


def _text(transaction_id: bytes) -> str | None:
    try:
        return transaction_id.decode() or None
    except UnicodeDecodeError:
        return None
