"""An hour in which a broker and a pipeline both check, while everything around them stalls.

A seed chooses what happens in each step. Clients, verdicts and look-ups go through real sockets,
a real look-up process and a real database; only time is moved by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from escrowmq.broker.server import Server
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.protocol.native.operator_headers import ByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader
from escrowmq.testing import ManualClock
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.unit.broker.asking import answering, header_of, is_check, producer, row
from tests.unit.broker.late_pipeline import LatePipeline
from tests.unit.broker.native_peer import ask, decide, hold, sent
from tests.unit.broker.test_ledger_passes import Shop, passes
from tests.unit.broker.wire import COMMIT, END, ROLLBACK, UNKNOWN, Peer, eventually

HOUR_MS = 3_600_000
GROUPS = ("pay", "ship")
GONE = "gone"
"""A group whose producers never come back: only time ends its transactions."""
POLICY = CheckPolicy(
    checked_by="auto", checks_max=4, check_budget_per_group=5, park_after_ms=900_000
)
ALLOWED_MS = 60_000
#: A look-up may fail while another process has the database locked.
ROUNDS_TO_END = 5
MANNERS = ("at once", "at once", "late", "unknown first", "unknown", "silent")


@dataclass
class Deal:
    """One transaction, its true outcome, and how its producer answers checks."""

    transaction_id: str
    head: int
    group: str
    #: None if only the ledger knows.
    truth: int | None
    manner: str
    checks: int = 0


@dataclass
class CheckedHour:
    """The broker's surroundings."""

    server: Server
    clock: ManualClock
    shop: Shop
    rng: Random
    operator: Peer
    pipeline: LatePipeline
    deals: dict[int, Deal] = field(default_factory=dict)
    producers: dict[str, Peer] = field(default_factory=dict)
    #: Answers that producers have not sent yet.
    owed: list[CheckTransactionHeader] = field(default_factory=list)
    is_attached: bool = True
    #: How often another process became the one that checks.
    handovers: int = 0
    _checker: str = ""
    _beaten_at_ms: int = 0

    @property
    def hidden(self) -> Path:
        """Where the database is while it is out of reach."""
        return self.shop.path.with_suffix(".hidden")

    async def pass_by(self) -> None:
        """Let an hour pass."""
        steps: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (3.0, self._hold),
            (3.0, self._commit_in_the_database),
            (1.5, self._producer_comes_or_goes),
            (4.0, self._producers_answer),
            (1.5, self._late_answer),
            (3.0, self._pipeline_round),
            (0.8, self._pipeline_comes_or_goes),
            (0.5, self._pipeline_reports),
            (3.0, self._operator_acts),
            (3.0, self._broker_round),
            (0.3, self._database_comes_or_goes),
        ]
        weights = [weight for weight, _ in steps]
        ends_at_ms = self.clock.monotonic_ms() + HOUR_MS
        while self.clock.monotonic_ms() < ends_at_ms:
            for _, step in self.rng.choices(steps, weights, k=self.rng.randrange(1, 4)):
                await step()
            is_stall = self.rng.random() < 0.03
            self.clock.advance(ms=self.rng.randrange(200_000) if is_stall else self._pause_ms())
            await self._beat_if_due()
            self._note_checker()

    async def end(self) -> None:
        """Leave the broker alone until everything that is undecided is past its time."""
        self.pipeline.drop_round()
        await self.pipeline.beat(is_last=True)
        if self.hidden.exists():
            self.hidden.rename(self.shop.path)
            await passes(self.server).probe()
        self.clock.advance(ms=POLICY.park_after_ms)
        for _ in range(ROUNDS_TO_END):
            await self.server.broker.rounds.run()
            await self._look_ups_end()
            self.clock.advance(ms=POLICY.check_interval_ms)

    def _note_checker(self) -> None:
        checker = self.server.broker.leadership.checker.value
        self.handovers += checker != self._checker
        self._checker = checker

    def _pause_ms(self) -> int:
        return self.rng.choice((0, 100, 2_000, 5_000, 9_000, 15_000))

    # Transactions.

    async def _hold(self) -> None:
        group, number = self.rng.choice((*GROUPS, GONE)), len(self.deals)
        transaction_id, rows = f"t{number}", [sent()] * self.rng.choice((1, 1, 3))
        has_ledger = self.rng.random() < 0.4
        fields = {"ledger": self.shop.uuid, "allowed_ms": ALLOWED_MS} if has_ledger else {}
        told = await hold(self.operator, transaction_id, *rows, producer_group=group, **fields)
        truth = None if has_ledger else self.rng.choice((COMMIT, ROLLBACK))
        head = told.header.half_offset
        self.deals[head] = Deal(transaction_id, head, group, truth, self.rng.choice(MANNERS))

    async def _commit_in_the_database(self) -> None:
        """Commit like a user's program, early or late; a fence makes it fail."""
        waiting = [deal for deal in self.deals.values() if deal.truth is None]
        if waiting and not self.hidden.exists():
            deal = self.rng.choice(waiting)
            with contextlib.suppress(sqlite3.IntegrityError):
                await asyncio.to_thread(self.shop.commit, deal.transaction_id)

    # Producers.

    async def _producer_comes_or_goes(self) -> None:
        group = self.rng.choice(GROUPS)
        peer = self.producers.pop(group, None)
        if peer is None:
            self.producers[group] = await producer(self.server, f"of {group}", group=group)
        else:
            await peer.closed()

    async def _producers_answer(self) -> None:
        for peer in self.producers.values():
            # The checks that were sent before have arrived with the answer to this.
            await peer.ask(RequestCode.CHECK_CLIENT_CONFIG)
            asked = [header_of(one) for one in peer.kept if is_check(one)]
            peer.kept.clear()
            for header in asked:
                await self._answer(peer, header)

    async def _answer(self, peer: Peer, header: CheckTransactionHeader) -> None:
        deal = self.deals[header.half_offset]
        deal.checks += 1
        if deal.truth is None:
            # The producer has no handler for transactions of ledgers.
            await self._tell(peer, header, UNKNOWN)
        elif deal.manner == "at once" or (deal.manner == "unknown first" and deal.checks > 1):
            await self._tell(peer, header, deal.truth)
        elif deal.manner.startswith("unknown"):
            await self._tell(peer, header, UNKNOWN)
        elif deal.manner == "late":
            self.owed.append(header)

    async def _late_answer(self) -> None:
        if self.owed and self.producers:
            header = self.owed.pop(self.rng.randrange(len(self.owed)))
            peer = self.rng.choice(list(self.producers.values()))
            truth = self.deals[header.half_offset].truth
            assert truth is not None
            await self._tell(peer, header, truth)

    async def _tell(self, peer: Peer, header: CheckTransactionHeader, bits: int) -> None:
        group = self.deals[header.half_offset].group
        said = msgspec.structs.replace(answering(header, bits), producer_group=group)
        await peer.ask(END, said)

    # The pipeline.

    async def _pipeline_round(self) -> None:
        if not self.is_attached:
            return
        if not self.pipeline.is_in_round:
            await self.pipeline.begin_round()
        elif self.rng.random() < 0.2:
            self.pipeline.drop_round()
        elif self.rng.random() < 0.5:
            await self.pipeline.end_round()
        else:
            # Both at once.
            await asyncio.gather(self.pipeline.end_round(), self.server.broker.rounds.run())

    async def _beat_if_due(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if self.is_attached and now_ms - self._beaten_at_ms >= 5_000:
            self._beaten_at_ms = now_ms
            await self.pipeline.beat()

    async def _pipeline_comes_or_goes(self) -> None:
        """A pipeline that vanishes may send the verdicts of its last round, even much later."""
        self.is_attached = not self.is_attached
        if not self.is_attached and self.rng.random() < 0.5:
            await self.pipeline.beat(is_last=True)
        if not self.is_attached and self.pipeline.is_in_round and self.rng.random() < 0.5:
            await self.pipeline.end_round()

    async def _pipeline_reports(self) -> None:
        await self.pipeline.report(*self.rng.choice(((self.shop.uuid,), ())))

    # The broker and its operator.

    async def _broker_round(self) -> None:
        await self.server.broker.rounds.run()
        if self.rng.random() < 0.5:
            await self._look_ups_end()

    async def _look_ups_end(self) -> None:
        await eventually(lambda: not passes(self.server)._passes)

    async def _operator_acts(self) -> None:
        parked = [one for one in self.deals.values() if self._state(one) is State.PARKED]
        if not parked:
            return
        deal = self.rng.choice(parked)
        if deal.truth is not None and self.rng.random() < 0.3:
            await decide(self.operator, deal.head, "commit" if deal.truth == COMMIT else "rollback")
        else:
            header = ByHandHeader(half_offset=deal.head, by="ops")
            await ask(self.operator, NativeCode.RESUME, header)

    async def _database_comes_or_goes(self) -> None:
        if self.hidden.exists():
            self.hidden.rename(self.shop.path)
        else:
            self.shop.path.rename(self.hidden)

    def _state(self, deal: Deal) -> State:
        return row(self.server, deal.head).state


def pipeline_beside(server: Server, clock: ManualClock, shop: Shop, rng: Random) -> LatePipeline:
    """Return a pipeline that may or may not know the ledger."""
    ledger = SqlLedger(shop.url) if rng.random() < 0.7 else None
    return LatePipeline(server.broker_address, clock, ledger)
