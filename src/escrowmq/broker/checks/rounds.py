"""The broker's own settle rounds: finds what is due, asks producers, and looks ledgers up.

A round reads the due transactions in pages, between two batches of the writer, and applies the same
time rules as the pipeline. Its verdicts name the version that they were computed from, so a round
of a pipeline at the same time does no harm. Look-ups run beside the rounds, one pass per ledger at
a time, so that a slow database delays neither back-checks nor other ledgers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from escrowmq.broker.checks.due_plan import REASONS, DuePlan, RoundView, plan_round
from escrowmq.broker.checks.leading import Checker, Leadership
from escrowmq.broker.checks.ledger_passes import DueInLedger
from escrowmq.broker.checks.obeying import OUTCOMES, VerdictExecutor, verdicts_on
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.questions import ask_between
from escrowmq.broker.write.writer import Writer
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.native.answer_columns import compact
from escrowmq.store.disk.rows import Rows
from escrowmq.store.reading.listing import DueBy, list_heads, started_at_ms
from escrowmq.store.store import Store
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.records import NEVER, NamedOrigin
from escrowmq.transaction.states import State

log = event_log(__name__)

PAGE_ROWS = 16_384
LOOKED_AT_MAX = 262_144
"""Due transactions, and rows of the table, that one page reads: about 2 ms."""
REST = 30
"""After a round, the broker pauses for this many times the time that the round held the loop."""

T = TypeVar("T")


class LedgerWork(Protocol):
    """Looks up transactions in ledgers; None of its calls blocks the event loop."""

    @property
    def ledgers(self) -> frozenset[str]:
        """The UUIDs of the ledgers that can be looked up, now or later."""

    @property
    def has_unnamed(self) -> bool:
        """Whether a configured database has not said yet which ledger it has."""

    @property
    def did(self) -> Counter[str]:
        """Transactions since the start, by outcome of their verdict or by the reason for none."""

    def look_up(self, ledger: str, due: DueInLedger) -> None:
        """Start a pass over these transactions, unless one is under way."""

    async def close(self) -> None:
        """End all passes."""


@dataclass(slots=True)
class LastRound:
    """The last round, in store time."""

    ended_at_ms: int = 0
    took_ms: int = 0
    #: Transactions by what was done or why not.
    did: Counter[str] = field(default_factory=Counter)
    error: str = ""

    @property
    def did_text(self) -> str:
        """The counts as text, such as `asked=3 committed=1`."""
        return " ".join(f"{what}={count}" for what, count in sorted(self.did.items()) if count)


@dataclass(eq=False)
class SettleRounds:
    """Runs rounds. Use it from one event loop only."""

    store: Store
    writer: Writer
    clock: BrokerClock
    leadership: Leadership
    executor: VerdictExecutor
    #: None if no ledger is configured: then only producers know the outcomes.
    ledger_work: LedgerWork | None = None
    last: LastRound = field(default_factory=LastRound, init=False)
    #: When the last successful round ended, in store time; 0 if there was none.
    succeeded_at_ms: int = field(default=0, init=False)
    #: Rounds since the start.
    succeeded: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    #: Transactions since the start, by what rounds did or why not.
    _did: Counter[str] = field(default_factory=Counter, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    #: One round at a time.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _rests_until: float = field(default=0.0, init=False)
    #: How long this round has held the event loop.
    _held_s: float = field(default=0.0, init=False)

    @property
    def outcomes(self) -> Counter[str]:
        """Transactions since the start, by what rounds and their look-ups did or why not."""
        return self._did + (Counter() if self.ledger_work is None else self.ledger_work.did)

    def stalled_ms(self, oldest_undecided_at_ms: int | None) -> int:
        """Return for how long no round has succeeded, if that is too long; 0 if it is not.

        The broker must be the one that checks, and a transaction old enough for its first check.
        """
        now_ms, leadership = self.clock.now_ms(), self.leadership
        if leadership.checker is not Checker.BROKER or oldest_undecided_at_ms is None:
            return 0
        if now_ms - oldest_undecided_at_ms < self.store.core.policy.check_after_ms:
            return 0
        waited_ms = now_ms - max(self.succeeded_at_ms, leadership.since_ms)
        return waited_ms if waited_ms > leadership.patience_ms else 0

    def looks_up(self, ledger: str) -> bool:
        """Whether the broker itself looks up this ledger."""
        work = self.ledger_work
        return work is not None and ledger in work.ledgers and self.leadership.leads(ledger)

    async def close(self) -> None:
        """End the work in ledgers that a round has started."""
        if self.ledger_work is not None:
            await self.ledger_work.close()

    async def tick(self) -> None:
        """Run a round, unless the broker rests after the last one or checks nothing."""
        if self._loop.time() >= self._rests_until:
            await self.run()

    async def run(self) -> None:
        """Examine everything that is due once, and do what the rules say."""
        async with self._turn:
            if self.leadership.look() is not Checker.NONE:
                await self._run()

    async def _run(self) -> None:
        began, self._held_s = self._loop.time(), 0.0
        done = LastRound()
        try:
            await self._round(done)
        except Exception as error:
            done.error = str(error) or type(error).__name__
            self.failed += 1
            raise
        else:
            self.succeeded += 1
            self.succeeded_at_ms = self.clock.now_ms()
        finally:
            now = self._loop.time()
            self._rests_until = now + REST * self._held_s
            done.ended_at_ms = self.clock.now_ms()
            done.took_ms = int((now - began) * 1_000)
            self.last = done
            self._did.update(done.did)

    async def _round(self, done: LastRound) -> None:
        store, as_of_ms = self.store, self.clock.now_ms()
        sight = Sight(store.core.lineage, store.durable_end, store.durable_rows)
        heads = await self._due_heads()
        plan = await self._between(lambda: self._planned(heads))
        self.leadership.note_due(is_due=plan.due > 0)
        asked = self._within_budget(heads, plan.asks, done)
        rows = np.concatenate([asked, plan.parks])
        if len(rows):
            kinds = [VerdictKind.ASK] * len(asked) + [VerdictKind.PARK] * len(plan.parks)
            reasons = [""] * len(asked) + [REASONS[at].value for at in plan.reasons[plan.parks]]
            outcomes = await self.executor.obeyed(verdicts_on(heads[rows], kinds, reasons))
            done.did.update(OUTCOMES[code].value for code in outcomes.tolist())
        for ledger, looked_up in plan.look_ups.items():
            if self.ledger_work is not None and len(looked_up):
                done.did["looked_up"] += len(looked_up)
                due = DueInLedger(heads[looked_up], plan.reasons[looked_up], sight, as_of_ms)
                self.ledger_work.look_up(ledger, due)

    async def _due_heads(self) -> Rows:
        now_ms, policy = self.clock.now_ms(), self.store.core.policy
        due_by = DueBy(check_at_ms=now_ms, stored_at_ms=now_ms - policy.park_after_ms)
        found: list[Rows] = []
        start: int | None = 0
        while start is not None:
            page = await self._between(
                partial(
                    list_heads,
                    self.store,
                    start,
                    NEVER,
                    (State.PREPARED,),
                    limit=PAGE_ROWS,
                    looked_at_max=LOOKED_AT_MAX,
                    due_by=due_by,
                )
            )
            found.append(page.heads)
            start = page.next_start
        return np.concatenate(found)

    def _planned(self, heads: Rows) -> DuePlan:
        numbers, origins = self._origins(heads)
        work = self.ledger_work
        view = RoundView(
            policy=self.store.core.policy,
            now_ms=self.clock.now_ms(),
            asks=self.leadership.checker is Checker.BROKER,
            ledgers=frozenset() if work is None else work.ledgers,
            has_unnamed_ledger=work is not None and work.has_unnamed,
            leads=self.leadership.leads,
        )
        return plan_round(heads, started_at_ms(self.store, heads), origins, numbers, view)

    def _origins(self, heads: Rows) -> tuple[Rows, list[NamedOrigin]]:
        numbers, seen = compact(heads["origin"])
        return numbers, [self.store.core.names.origins[number] for number in seen]

    def _within_budget(self, heads: Rows, asks: Rows, done: LastRound) -> Rows:
        """Return the back-checks that may be sent now, those that are due the longest first."""
        if not len(asks):
            return asks
        checking, now_ms = self.executor.checking, self.clock.now_ms()
        numbers, origins = self._origins(heads[asks])
        by_group: dict[str, list[int]] = {}
        for number, origin in enumerate(origins):
            by_group.setdefault(origin.group, []).append(number)
        is_sent = np.zeros(len(asks), dtype=np.bool_)
        for group, its in by_group.items():
            # The producer still has to answer the last check of some.
            unanswered = checking.budget.unanswered(group, now_ms)
            is_open = ~np.isin(heads["half_offset"][asks], unanswered)
            mine = np.flatnonzero(np.isin(numbers, its) & is_open)
            if not checking.online(group):
                done.did[VerdictOutcome.NO_PRODUCER.value] += len(mine)
                continue
            room = checking.budget.room(group, now_ms)
            is_sent[mine[:room]] = True
            done.did["over_budget"] += max(len(mine) - room, 0)
        return asks[is_sent][: max(checking.room, 0)]

    async def _between(self, work: Callable[[], T]) -> T:
        """Run the work between two batches, and count how long it holds the event loop."""

        def measured() -> T:
            began = self._loop.time()
            try:
                return work()
            finally:
                self._held_s += self._loop.time() - began

        return await ask_between(self.writer, measured)
