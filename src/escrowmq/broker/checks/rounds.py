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

from escrowmq.broker.checks.due_pages import found_heads
from escrowmq.broker.checks.due_plan import REASONS, DueHeads, DuePlan, RoundView, plan_round
from escrowmq.broker.checks.leading import Checker, Leadership
from escrowmq.broker.checks.ledger_passes import DueInLedger
from escrowmq.broker.checks.obeying import (
    ASK,
    PARK,
    VerdictColumns,
    VerdictExecutor,
    counted,
    verdicts_on,
)
from escrowmq.broker.write.broker_clock import BrokerClock
from escrowmq.broker.write.questions import ask_between
from escrowmq.broker.write.writer import Writer
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.store.disk.rows import Rows
from escrowmq.store.reading.listing import (
    DueBy,
    WantedHeads,
    heads_at,
    list_heads,
    started_at_ms,
)
from escrowmq.store.store import Store
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

log = event_log(__name__)

PAGE_ROWS = 16_384
LOOKED_AT_MAX = 262_144
"""Due transactions, and rows of the table, that one page reads: about 2 ms."""
LARGE_ROWS = 10_000
"""A round with more due transactions than this is planned in a thread."""
GROUPS_AT_ONCE = 500
"""Producer groups whose budget is examined in one turn of the event loop."""
VERDICTS_BESIDE = 64
"""Verdicts that are carried out at once while clients send messages."""
PARKS_MAX = 4_096
"""Transactions that one round parks."""
AGAIN_S = 0.02
"""Pause before a further round that does what a limit has held back."""
OVER_BUDGET = "over_budget"
LOOKED_UP = "looked_up"
LOOK_UP_WAITS = "look_up_waits"
"""The ledger of the transaction has a pass under way, or rests after one."""
REST = 30
"""After a round, the broker pauses for this many times the time that its reads held the loop."""

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

    def look_up(self, ledger: str, due: DueInLedger) -> bool:
        """Start a pass over these transactions, unless one is under way; return if it starts."""

    async def close(self) -> None:
        """End all passes."""


@dataclass(slots=True)
class LastRound:
    """What the last round did, and when it ended in store time."""

    ended_at_ms: int = 0
    took_ms: int = 0
    #: Number of transactions by what the round did about them, or why it did nothing.
    did: Counter[str] = field(default_factory=Counter)
    error: str = ""
    #: Whether a further round can do what a limit has held back: producers answer, or more
    #: transactions are to be parked.
    has_more: bool = False

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
    #: Transactions since the start, by what rounds did about them, or why they did nothing.
    _did: Counter[str] = field(default_factory=Counter, init=False)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)
    #: One round at a time.
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _rests_until: float = field(default=0.0, init=False)
    #: How long reads of this round have held the event loop.
    _held_s: float = field(default=0.0, init=False)

    @property
    def outcomes(self) -> Counter[str]:
        """Transactions since the start, by what rounds and their look-ups did or why not."""
        return self._did + (Counter() if self.ledger_work is None else self.ledger_work.did)

    def stalled_ms(self, oldest_undecided_at_ms: int | None) -> int:
        """Return for how long no round has succeeded, if that is too long; 0 if it is not.

        It is also 0 if the broker does not check, or no transaction is old enough for a check.
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
        """Run a round, unless the broker rests after the last one or checks nothing.

        While a limit holds back what a further round can do, run further rounds.
        """
        if self._loop.time() < self._rests_until:
            return
        await self.run()
        while self.last.has_more:
            await asyncio.sleep(max(self._rests_until - self._loop.time(), AGAIN_S))
            await self.run()

    async def run(self) -> None:
        """Examine everything that is due once, and do what the rules say."""
        async with self._turn:
            self.leadership.look()
            if self.leadership.policy.checked_by in ("auto", "broker"):
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
        pages = await self._due_pages()
        due = await self._off_loop(pages, partial(DueHeads.joined, pages))
        origins = [store.core.names.origins[number] for number in due.seen]
        plan = await self._off_loop(pages, partial(plan_round, due, origins, self._view()))
        self.leadership.note_due(is_due=plan.due > 0)
        # Look-ups begin first: producers that do not read their checks can delay the rest for long.
        for ledger, mine in plan.look_ups.items():
            assert self.ledger_work is not None, "without it, no ledger is led"
            part = DueInLedger(due.heads[mine], plan.reasons[mine], sight, as_of_ms)
            has_begun = self.ledger_work.look_up(ledger, part)
            done.did[LOOKED_UP if has_begun else LOOK_UP_WAITS] += len(mine)
        asked = await self._within_budget(plan, done)
        parks = plan.parks[:PARKS_MAX]
        done.has_more = len(parks) < len(plan.parks)
        rows = np.concatenate([*asked, parks])
        if len(rows):
            asks = len(rows) - len(parks)
            kinds = np.repeat([ASK, PARK], [asks, len(parks)])
            reasons = [""] * asks + [REASONS[at].value for at in plan.reasons[parks]]
            done.did += await self._obeyed(verdicts_on(due.heads[rows], kinds, reasons))
            done.has_more |= bool(done.did[VerdictOutcome.ASKED.value] and done.did[OVER_BUDGET])

    async def _obeyed(self, verdicts: VerdictColumns) -> Counter[str]:
        """Carry out verdicts, in small parts while clients send messages; count the outcomes."""
        did: Counter[str] = Counter()
        rows = np.arange(len(verdicts.half_offsets))
        while len(rows):
            size = VERDICTS_BESIDE if self.writer.pace.is_in_use else len(rows)
            did += counted(await self.executor.obeyed(verdicts.taken(rows[:size])))
            rows = rows[size:]
        return did

    async def _due_pages(self) -> list[tuple[Rows, Rows]]:
        now_ms, policy = self.clock.now_ms(), self.store.core.policy
        due_by = DueBy(check_at_ms=now_ms, stored_at_ms=now_ms - policy.park_after_ms)
        found: list[tuple[Rows, Rows]] = []
        start: int | None = 0
        while start is not None:
            if self.writer.following is None:
                heads, started, start = await self._between(partial(self._page, start, due_by))
            else:
                rows, start = await found_heads(self.writer.following, start, due_by)
                heads, started = await self._between(partial(self._known, rows, due_by))
            found.append((heads, started))
        return found

    def _page(self, start: int, due_by: DueBy) -> tuple[Rows, Rows, int | None]:
        page = list_heads(
            self.store,
            start,
            NEVER,
            (State.PREPARED,),
            limit=PAGE_ROWS,
            looked_at_max=LOOKED_AT_MAX,
            due_by=due_by,
        )
        return page.heads, started_at_ms(self.store, page.heads), page.next_start

    def _known(self, rows: Rows, due_by: DueBy) -> tuple[Rows, Rows]:
        """Return what the core knows of rows that a state store found."""
        heads = heads_at(self.store, rows, WantedHeads((State.PREPARED,), due_by))
        return heads, started_at_ms(self.store, heads)

    def _view(self) -> RoundView:
        work, leadership = self.ledger_work, self.leadership
        ledgers = frozenset() if work is None else work.ledgers
        return RoundView(
            policy=self.store.core.policy,
            now_ms=self.clock.now_ms(),
            asks=leadership.checker is Checker.BROKER,
            ledgers=ledgers,
            led=frozenset(filter(leadership.leads, ledgers)),
            has_unnamed_ledger=work is not None and work.has_unnamed,
        )

    async def _within_budget(self, plan: DuePlan, done: LastRound) -> list[Rows]:
        """Return the back-checks that may be sent now, those that are due the longest first.

        Groups share the broker's room: each gets at most an equal part of what is left.
        """
        wanted = await self._within_groups(plan, done)
        left = self.executor.checking.room
        for number, rows in enumerate(wanted):
            # Rounded up, so that with less room than groups, those that wait longest get it.
            share = -(-left // (len(wanted) - number))
            wanted[number] = rows[:share]
            done.did[OVER_BUDGET] += len(rows) - len(wanted[number])
            left -= len(wanted[number])
        return wanted

    async def _within_groups(self, plan: DuePlan, done: LastRound) -> list[Rows]:
        """Return for each group the due back-checks that its budget allows now."""
        checking, now_ms = self.executor.checking, self.clock.now_ms()
        found: list[Rows] = []
        for number, (group, due) in enumerate(plan.asks.items(), start=1):
            if number % GROUPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not checking.online(group):
                done.did[VerdictOutcome.NO_PRODUCER.value] += len(due)
                continue
            # Ask again only about transactions whose last back-check no producer may still answer.
            mine = plan.without(due, checking.budget.unanswered(group, now_ms))
            room = max(checking.budget.room(group, now_ms), 0)
            done.did[OVER_BUDGET] += max(len(mine) - room, 0)
            if room and len(mine):
                found.append(mine[:room])
        return found

    async def _off_loop(self, pages: list[tuple[Rows, Rows]], work: Callable[[], T]) -> T:
        """Run work on many rows in a thread, because it would hold the event loop too long."""
        is_large = sum(len(heads) for heads, _ in pages) > LARGE_ROWS
        return await asyncio.to_thread(work) if is_large else work()

    async def _between(self, work: Callable[[], T]) -> T:
        """Run the work between two batches, and count how long it holds the event loop."""

        def measured() -> T:
            began = self._loop.time()
            try:
                return work()
            finally:
                self._held_s += self._loop.time() - began

        return await ask_between(self.writer, measured)
