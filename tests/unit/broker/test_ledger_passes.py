"""The broker looks up undecided transactions in real ledgers, without a pipeline or a producer."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.checks import ledger_passes
from escrowmq.broker.checks.ledger_passes import LedgerPasses
from escrowmq.broker.server import Server
from escrowmq.broker.write import pace
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.protocol.look_up.messages import LookUpAnswer, LookUpRequest
from escrowmq.protocol.native.headers import HoldManyHeader
from escrowmq.protocol.native.ledgers import LedgerReportRow, ReportLedgersHeader
from escrowmq.protocol.native.pipeline_headers import HeartbeatHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.testing import ManualClock
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.unit.broker.asking import producer, row, was_asked
from tests.unit.broker.native_peer import ask, hold, sent_in
from tests.unit.broker.wire import T0, Peer, clock_of, eventually, serving, visible

POLICY = CheckPolicy()
ALLOWED_MS = 60_000
#: The broker gives a transaction its allowed time and a margin before it fences it.
OVERDUE_MS = 4 * ALLOWED_MS
OTHER = "99999999-2222-3333-4444-555555555555"


@dataclass(frozen=True)
class Shop:
    """A database with a ledger."""

    path: Path
    uuid: str

    @classmethod
    def create(cls, path: Path) -> Shop:
        return cls(path, SqlLedger(f"sqlite:///{path}").create())

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def commit(self, *transaction_ids: str) -> None:
        """Write the rows that the SDK writes in the user's own transaction."""
        with closing(sqlite3.connect(self.path)) as database, database:
            database.executemany(
                "INSERT INTO escrowmq_ledger (transaction_id, producer_group, outcome,"
                " written_at_ms) VALUES (?, 'pay', 'committed', ?)",
                [(one, T0) for one in transaction_ids],
            )

    def outcomes(self) -> dict[str, str]:
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute("SELECT transaction_id, outcome FROM escrowmq_ledger")
            return dict(found.fetchall())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look ledgers up again at once, because the clock of these tests stands still."""
    monkeypatch.setattr(ledger_passes, "REST_UNDECIDED_S", 0.0)
    monkeypatch.setattr(ledger_passes, "REST_S", 0.0)
    monkeypatch.setattr(ledger_passes, "PROBE_S", 0.1)


@asynccontextmanager
async def looking(
    data: Path, clock: ManualClock | None = None, *, checked_by: str = "auto", **urls: str
) -> AsyncIterator[Server]:
    """Run a broker with these ledgers, once it has probed them."""
    policy = {"checked_by": checked_by}
    async with serving(data, clock, policy=policy, ledgers=urls) as server:
        await passes(server).probe()
        yield server


def passes(server: Server) -> LedgerPasses:
    found = server.broker.rounds.ledger_work
    assert isinstance(found, LedgerPasses)
    return found


async def settled(server: Server) -> None:
    """Run a round whose look-ups all begin, and wait for its passes."""
    waits = True
    while waits:
        await server.broker.rounds.run()
        # The broker's own round may have begun a pass over what was due before.
        waits = bool(server.broker.rounds.last.did["look_up_waits"])
        await eventually(lambda: not passes(server)._passes)


async def hold_in(peer: Peer, shop: Shop, transaction_id: str) -> None:
    await hold(peer, transaction_id, ledger=shop.uuid, allowed_ms=ALLOWED_MS)


async def test_the_ledger_commits_without_a_producer(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        await settled(server)
        assert row(server).state is State.PREPARED
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await settled(server)
        assert row(server).state is State.COMMITTED
        assert len(visible(server)) == 1
        assert passes(server).did["committed"] == 1
        assert row(server).checks_sent == 0


async def test_an_absent_row_is_fenced_only_past_its_deadline(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await settled(server)
        assert (row(server).state, shop.outcomes()) == (State.PREPARED, {})
        clock_of(server).advance(ms=OVERDUE_MS)
        await settled(server)
        assert row(server).state is State.ROLLED_BACK
        assert shop.outcomes() == {"t1": "rolled_back"}
        assert not await was_asked(peer)


def request_sizes(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each request to the look-up process."""
    sizes: list[int] = []
    process = passes(server).process
    look_up = process.look_up

    async def noted(request: LookUpRequest) -> LookUpAnswer:
        sizes.append(len(request.transaction_ids))
        return await look_up(request)

    monkeypatch.setattr(process, "look_up", noted)
    return sizes


@pytest.mark.parametrize(("in_use_s", "at_once"), [(0, 4_000), (60, ledger_passes.ROWS_BESIDE)])
async def test_many_are_looked_up_as_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_use_s: float, at_once: int
) -> None:
    monkeypatch.setattr(pace, "IN_USE_S", in_use_s)
    monkeypatch.setattr(ledger_passes, "REST_BESIDE", 0)
    shop = Shop.create(tmp_path / "shop.db")
    count = 9_000
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        header = HoldManyHeader(producer_group="pay", ledger=shop.uuid, allowed_ms=ALLOWED_MS)
        for at in range(0, count, 3_000):
            rows = [sent_in(f"t{at + number}") for number in range(3_000)]
            await ask(peer, NativeCode.HOLD_MANY, header, rows)
        shop.commit(*(f"t{number}" for number in range(0, count, 2)))
        sizes = request_sizes(server, monkeypatch)
        clock_of(server).advance(ms=OVERDUE_MS)
        await settled(server)
        assert max(sizes) == at_once
        assert passes(server).did["committed"] == passes(server).did["rolled_back"] == count // 2
        assert len(visible(server)) > 0


async def test_a_ledger_that_is_not_configured_counts_as_absent(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold(peer, "t1", ledger=OTHER, allowed_ms=ALLOWED_MS)
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await server.broker.rounds.run()
        assert await was_asked(peer)


async def test_no_producer_is_asked_while_a_database_has_not_told_its_ledger(
    tmp_path: Path,
) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    missing = f"sqlite:///{tmp_path / 'late.db'}"
    async with looking(tmp_path / "data", shop=shop.url, late=missing) as server:
        peer = await producer(server, "p")
        await hold(peer, "t1", ledger=OTHER, allowed_ms=ALLOWED_MS)
        await hold(peer, "t2")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await server.broker.rounds.run()
        assert await was_asked(peer)
        assert [row(server, number).checks_sent for number in range(2)] == [0, 1]
        Shop.create(tmp_path / "late.db")
        await eventually(lambda: not passes(server).has_unnamed)
        await server.broker.rounds.run()
        assert row(server).checks_sent == 1


async def test_a_database_that_is_gone_parks_nothing_before_its_time(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        shop.path.rename(tmp_path / "hidden.db")
        clock_of(server).advance(ms=OVERDUE_MS)
        await passes(server).probe()
        await settled(server)
        assert row(server).state is State.PREPARED
        assert not await was_asked(peer)
        (tmp_path / "hidden.db").rename(shop.path)
        await passes(server).probe()
        await settled(server)
        assert row(server).state is State.ROLLED_BACK


async def test_a_ledger_that_stays_away_parks_at_last(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.path.unlink()
        clock_of(server).advance(ms=POLICY.park_after_ms)
        await passes(server).probe()
        await settled(server)
        assert row(server).state is State.PARKED


async def test_a_killed_look_up_process_starts_again(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        process: Any = passes(server).process
        os.kill(process.pid, signal.SIGKILL)
        await eventually(lambda: process.pid is None)
        clock_of(server).advance(ms=POLICY.check_after_ms)
        while row(server).state is State.PREPARED:
            await settled(server)
        assert row(server).state is State.COMMITTED


async def test_after_a_restart_the_ledger_still_decides(tmp_path: Path) -> None:
    shop, clock = Shop.create(tmp_path / "shop.db"), ManualClock(T0)
    async with looking(tmp_path / "data", clock, shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
    clock.advance(ms=POLICY.check_after_ms)
    async with looking(tmp_path / "data", clock, shop=shop.url) as server:
        await settled(server)
        assert row(server).state is State.COMMITTED


# Beside a pipeline.


async def attach(peer: Peer, *reached: str) -> None:
    """Report as a living pipeline that reaches these ledgers."""
    await ask(peer, NativeCode.PIPELINE_HEARTBEAT, HeartbeatHeader(pipeline="host/1"))
    rows = [LedgerReportRow(name="shop", uuid=one, is_reachable=True) for one in reached]
    await ask(peer, NativeCode.REPORT_LEDGERS, ReportLedgersHeader(pipeline="host/1"), rows)


async def test_a_pipeline_that_reaches_the_ledger_leads_there(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await attach(peer, shop.uuid)
        await settled(server)
        assert row(server).state is State.PREPARED
        clock_of(server).advance(ms=20_000)
        await settled(server)
        assert row(server).state is State.COMMITTED


async def test_the_broker_looks_up_the_ledgers_that_a_pipeline_lacks(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        await hold(peer, "t2")
        shop.commit("t1")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await attach(peer, OTHER)
        await settled(server)
        assert row(server).state is State.COMMITTED
        assert not await was_asked(peer)


async def test_a_pipeline_without_the_ledger_neither_asks_nor_exhausts(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        await hold(peer, "t2")
        await attach(peer, OTHER)
        rows = [
            VerdictRow(half_offset=at, verdict=kind, state=0, checks_sent=0, reason=reason)
            for at, kind, reason in (
                (0, "ask", None),
                (0, "park", "exhausted"),
                (1, "ask", None),
                (0, "park", "maybe_swept"),
            )
        ]
        told = await ask(peer, NativeCode.OBEY_VERDICTS, rows=rows)
        assert [one.outcome for one in told.rows] == ["busy", "busy", "asked", "parked"]


async def test_a_pipeline_that_does_no_work_keeps_no_ledger_from_the_broker(
    tmp_path: Path,
) -> None:
    """Another pipeline leads, and the one that reaches the ledger reports it, but ends no round."""
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        for _ in range(2 * POLICY.check_interval_ms // 5_000 + 1):
            await attach(peer, shop.uuid)
            working = HeartbeatHeader(pipeline="host/2", round_ended_ago_ms=0)
            told = await ask(peer, NativeCode.PIPELINE_HEARTBEAT, working)
            assert told.header.checker == "pipeline"
            await settled(server)
            assert row(server).state is State.PREPARED
            clock_of(server).advance(ms=5_000)
        await settled(server)
        assert row(server).state is State.COMMITTED


async def test_a_round_counts_a_look_up_only_if_it_begins(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        clock_of(server).advance(ms=POLICY.check_after_ms)
        process: Any = passes(server).process
        os.kill(process.pid, signal.SIGSTOP)
        rounds = server.broker.rounds
        try:
            await rounds.run()
            assert rounds.last.did == {"looked_up": 1}
            await rounds.run()
            assert rounds.last.did == {"look_up_waits": 1}
        finally:
            os.kill(process.pid, signal.SIGCONT)


async def test_a_database_known_to_be_away_costs_no_read_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.path.rename(tmp_path / "hidden.db")
        await passes(server).probe()
        read: list[int] = []
        monkeypatch.setattr(ledger_passes, "identities", lambda *_: read.append(1))
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await settled(server)
        assert passes(server).did["ledger_unreachable"] >= 1
        assert not read


async def test_status_lists_the_brokers_own_ledgers(tmp_path: Path) -> None:
    shop = Shop.create(tmp_path / "shop.db")
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        listed = await ask(peer, NativeCode.LIST_LEDGERS)
        assert [(one.name, one.uuid, one.pipeline, one.is_reachable) for one in listed.rows] == [
            ("shop", shop.uuid, "broker", True)
        ]
        assert listed.header.pipelines == 0
