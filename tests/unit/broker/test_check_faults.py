"""Faults of the broker's own checks: databases, look-up processes and pipelines that fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.checks import ledger_passes, look_up_process
from escrowmq.broker.checks.look_up_process import LookUpLimits, LookUpProcess
from escrowmq.broker.native.status import status
from escrowmq.broker.server import Server
from escrowmq.client.ledger.janitor import Confirmed
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.model.errors import Unavailable
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight
from escrowmq.protocol.look_up.messages import Known, LookUpAnswer, LookUpRequest
from escrowmq.protocol.native.headers import HoldManyHeader, LogRangeHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import ManualClock
from escrowmq.transaction.states import State
from tests.unit.broker.asking import check, producer, row, was_asked
from tests.unit.broker.checked_hours import hasten
from tests.unit.broker.late_pipeline import LatePipeline
from tests.unit.broker.native_peer import all_rows, ask, hold, sent_in
from tests.unit.broker.test_ledger_passes import (
    OVERDUE_MS,
    POLICY,
    Shop,
    hold_in,
    looking,
    passes,
    settled,
)
from tests.unit.broker.wire import T0, Peer, clock_of, eventually

BEAT_MS = 5_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch.setattr)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.create(tmp_path / "shop.db")


@contextmanager
def beside(server: Server, shop: Shop | None) -> Iterator[LatePipeline]:
    """Run a pipeline beside the broker, with this ledger or none."""
    ledger = None if shop is None else SqlLedger(shop.url)
    pipeline = LatePipeline(server.broker_address, clock_of(server), ledger)
    try:
        yield pipeline
    finally:
        pipeline.close()


async def decisions(server: Server) -> list[str]:
    """Return the names of those who decided, in the order of the log."""
    peer = await Peer.to(server.broker_address)
    events = await all_rows(peer, NativeCode.LIST_EVENTS, LogRangeHeader())
    return [one.by for one in events if one.event in ("committed", "rolled_back")]


# Pipelines.


async def test_a_pipeline_whose_rounds_all_fail_gives_way_in_its_ledger_too(
    tmp_path: Path, shop: Shop
) -> None:
    """Its connection lives and it reaches the ledger, but no round of it ends."""
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        with beside(server, shop) as pipeline:
            await pipeline.report(shop.uuid)
            await pipeline.beat()
            clock_of(server).advance(ms=POLICY.check_after_ms)
            for _ in range(2 * POLICY.check_interval_ms // BEAT_MS):
                await pipeline.begin_round()
                pipeline.drop_round()
                assert await pipeline.beat() == "pipeline"
                await settled(server)
                assert row(server).state is State.PREPARED
                clock_of(server).advance(ms=BEAT_MS)
            clock_of(server).advance(ms=1)
            assert await pipeline.beat() == "broker"
            await settled(server)
            assert row(server).state is State.COMMITTED
            # A round that ends makes it lead again.
            await pipeline.begin_round()
            await pipeline.end_round()
            assert await pipeline.beat() == "pipeline"
        assert await decisions(server) == ["broker"]


@pytest.mark.parametrize("section", ["shop", "other"])
async def test_a_ledger_that_only_the_pipeline_reaches_waits_for_it(
    tmp_path: Path, shop: Shop, section: str
) -> None:
    """The broker has no way to its database, or no section for it and nobody to ask."""
    is_configured = section == "shop"
    path = tmp_path / "elsewhere.db"
    url = f"sqlite:///{path}" if is_configured else Shop.create(path).url
    urls: dict[str, Any] = {section: url}
    async with looking(tmp_path / "data", **urls) as server:
        asked = await producer(server, "p") if is_configured else None
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        for _ in range(2 * POLICY.checks_max):
            clock_of(server).advance(ms=POLICY.check_interval_ms)
            await settled(server)
        assert (row(server).state, row(server).checks_sent) == (State.PREPARED, 0)
        assert asked is None or not await was_asked(asked)
        with beside(server, shop) as pipeline:
            await pipeline.begin_round()
            assert await pipeline.beat() == "pipeline"
            await settled(server)
            await pipeline.end_round()
        assert row(server).state is State.COMMITTED
        assert await decisions(server) == ["settle"]


async def test_a_ledger_that_only_the_broker_reaches_is_left_to_it(
    tmp_path: Path, shop: Shop
) -> None:
    """The pipeline leads and asks producers, whose answers would never end."""
    async with looking(tmp_path / "data", shop=shop.url) as server:
        asked = await producer(server, "p")
        await hold_in(asked, shop, "t1")
        await hold(asked, "t2")
        with beside(server, None) as pipeline:
            await pipeline.report()
            assert await pipeline.beat() == "pipeline"
            clock_of(server).advance(ms=POLICY.check_after_ms)
            await pipeline.begin_round()
            outcomes = await pipeline.end_round()
            assert [one.value for one in outcomes] == ["busy", "asked"]
            assert (await check(asked))[0].half_offset == 1
            assert not await was_asked(asked)
            clock_of(server).advance(ms=OVERDUE_MS)
            await pipeline.beat()
            await settled(server)
        assert row(server).state is State.ROLLED_BACK
        assert await decisions(server) == ["broker"]


# Databases.


async def test_a_locked_row_delays_neither_producers_nor_rows_and_is_fenced_when_it_is_free(
    tmp_path: Path, shop: Shop
) -> None:
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        await hold_in(peer, shop, "t2")
        await hold(peer, "t3")
        shop.commit("t1")
        with closing(sqlite3.connect(shop.path, isolation_level=None)) as holder:
            # Others may read, but not write.
            holder.execute("BEGIN IMMEDIATE")
            clock_of(server).advance(ms=OVERDUE_MS)
            await server.broker.rounds.run()
            assert (await check(peer))[0].half_offset == 2
            await until_decided(server)
            assert row(server).state is State.COMMITTED
            assert row(server, 1).state is State.PREPARED
            assert passes(server).did["locked"] >= 1
        await until_decided(server, 1)
        assert row(server, 1).state is State.ROLLED_BACK


async def test_another_database_in_its_place_is_neither_believed_nor_fenced(
    tmp_path: Path, shop: Shop
) -> None:
    other = Shop.create(tmp_path / "other.db")
    other.commit("t1")
    kept = tmp_path / "kept.db"
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        await hold_in(peer, shop, "t2")
        shop.path.rename(kept)
        shutil.copy(other.path, shop.path)
        clock_of(server).advance(ms=OVERDUE_MS)
        # Before and after the broker has noticed it.
        await settled(server)
        await passes(server).probe()
        await settled(server)
        assert [row(server, at).state for at in range(2)] == [State.PREPARED] * 2
        assert shop.outcomes() == {"t1": "committed"}, "a fence was written there"
        kept.rename(shop.path)
        # A new process does not pause after the failure.
        process: Any = passes(server).process
        os.kill(process.pid, signal.SIGKILL)
        await until_probed(server)
        await until_decided(server)
        assert [row(server, at).state for at in range(2)] == [State.ROLLED_BACK] * 2


async def test_after_a_restore_swept_rows_are_parked_and_never_fenced(
    tmp_path: Path, shop: Shop
) -> None:
    """The ledger was swept under a history that the restored broker does not have."""
    clock, data, restored = ManualClock(T0), tmp_path / "data", tmp_path / "restored"
    async with looking(data, clock, shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        shutil.copytree(data, restored)
        (restored / "lock").unlink(missing_ok=True)
        clock.advance(ms=POLICY.check_after_ms)
        await settled(server)
        assert row(server).state is State.COMMITTED
        store = server.broker.store
        sight = Sight(store.core.lineage, store.durable_end, store.durable_rows)
        swept = Confirmed({"t1": LedgerOutcome.COMMITTED}, [sight])
        assert await asyncio.to_thread(SqlLedger(shop.url).sweep, lambda _: swept) == 1
    async with looking(restored, clock, shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t2")
        clock.advance(ms=OVERDUE_MS)
        await settled(server)
        assert row(server).state is State.PARKED
        # It was held after the restore, so it cannot have been swept.
        assert row(server, 1).state is State.ROLLED_BACK
        assert shop.outcomes() == {"t2": "rolled_back"}
        events = await all_rows(peer, NativeCode.LIST_EVENTS, LogRangeHeader())
        assert [one.detail for one in events if one.event == "parked"] == ["maybe_swept"]


# The look-up process.


async def in_a_pass(server: Server, shop: Shop) -> int:
    """Stop the look-up process in the middle of a pass; return its id."""
    process: Any = passes(server).process
    os.kill(process.pid, signal.SIGSTOP)
    clock_of(server).advance(ms=POLICY.check_after_ms)
    await server.broker.rounds.run()
    await eventually(lambda: process._child._waiting)
    assert shop.uuid in passes(server)._passes
    return int(process.pid)


async def until_probed(server: Server) -> None:
    """Wait until the next look-up process has answered a probe."""
    process, before = passes(server).process, passes(server)._known
    assert isinstance(process, LookUpProcess)
    await eventually(lambda: passes(server)._known is not before and process.pid)


async def until_decided(server: Server, half_offset: int = 0) -> None:
    async with asyncio.timeout(20):
        while row(server, half_offset).state is State.PREPARED:
            await settled(server)


async def test_a_look_up_process_killed_in_a_pass_is_replaced(tmp_path: Path, shop: Shop) -> None:
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        shop.commit("t1")
        victim = await in_a_pass(server, shop)
        os.kill(victim, signal.SIGKILL)
        await until_decided(server)
        assert row(server).state is State.COMMITTED
        process: Any = passes(server).process
        assert process.pid not in (None, victim)
        assert await decisions(server) == ["broker"]


async def test_a_look_up_process_that_hangs_in_a_pass_delays_no_producer_and_is_replaced(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = partial(LookUpLimits, grace_s=0.5, pauses_s=(0.01, 30.0))
    monkeypatch.setattr(look_up_process, "LookUpLimits", limits)
    short = partial(LookUpRequest, wait_ms=1_000)
    monkeypatch.setattr(ledger_passes, "LookUpRequest", short)
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await producer(server, "p")
        await hold_in(peer, shop, "t1")
        await hold(peer, "t2")
        shop.commit("t1")
        victim = await in_a_pass(server, shop)
        assert (await check(peer))[0].half_offset == 1
        assert row(server).state is State.PREPARED
        await until_decided(server)
        assert row(server).state is State.COMMITTED
        process: Any = passes(server).process
        assert process.pid not in (None, victim)


async def test_a_look_up_process_that_cannot_run_shows_its_ledgers_as_unreachable(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        await hold_in(peer, shop, "t1")
        process: Any = passes(server).process
        assert status(server.broker).undecided_without_ledger == 0
        monkeypatch.setattr(process, "_command", ("/no/such/program",))
        os.kill(process.pid, signal.SIGKILL)
        await eventually(lambda: status(server.broker).undecided_without_ledger == 1)
        (row,) = status(server.broker).ledgers
        assert (row.name, row.uuid, row.is_reachable) == ("shop", shop.uuid, False)
        assert row.error == "look_up_failed"


class FirstFails:
    """A look-up process that fails the first request while it works on the second."""

    def __init__(self, process: LookUpProcess) -> None:
        self._process = process
        self.names = process.names
        self._is_second = asyncio.Event()
        self.asked = 0
        self.canceled = 0

    async def known(self) -> Known:
        return await self._process.known()

    async def look_up(self, _request: LookUpRequest) -> LookUpAnswer:
        self.asked += 1
        if self.asked == 1:
            await self._is_second.wait()
            raise Unavailable("look_up_failed", "planted")
        self._is_second.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        raise AssertionError


async def test_a_pass_that_fails_leaves_no_request_behind(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next pass over the ledger would run beside the rest of this one."""
    monkeypatch.setattr(ledger_passes, "REST_UNDECIDED_S", 3_600.0)
    async with looking(tmp_path / "data", shop=shop.url) as server:
        peer = await Peer.to(server.broker_address)
        header = HoldManyHeader(producer_group="pay", ledger=shop.uuid, allowed_ms=1)
        for at in range(0, 6_000, 3_000):
            rows = [sent_in(f"t{at + number}") for number in range(3_000)]
            await ask(peer, NativeCode.HOLD_MANY, header, rows)
        process = passes(server).process
        assert isinstance(process, LookUpProcess)
        failing = passes(server).process = FirstFails(process)
        clock_of(server).advance(ms=POLICY.check_after_ms)
        await settled(server)
        assert (failing.asked, failing.canceled) == (2, 1)
