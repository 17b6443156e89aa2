"""AWAIT_DUE: a waiting call hears once that checks are due, and delays no other work."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.native import awaiting
from escrowmq.broker.server import Server
from escrowmq.model.errors import Unavailable
from escrowmq.model.sink_attempt import SinkAttempt, SinkRun
from escrowmq.protocol.native.frames import encode_call
from escrowmq.protocol.native.pipeline_headers import AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import AttemptRow
from escrowmq.protocol.native.sink_headers import DecideBatchHeader
from escrowmq.testing import ManualClock
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.native_peer import ask, decide, hold
from tests.unit.broker.wire import T0, Peer, eventually, serving

AFTER = CheckPolicy().check_after_ms
LONG = 20_000


async def due(peer: Peer, wait_ms: int = 0, since_ms: int = 0) -> Any:  # noqa: ANN401 - an AwaitDueAnswer
    header = AwaitDueHeader(wait_ms=wait_ms, since_ms=since_ms)
    return (await ask(peer, NativeCode.AWAIT_DUE, header)).header


async def begin(server: Server, peer: Peer, since_ms: int = 0) -> asyncio.Task[Any]:
    """Start a call and check that it waits."""
    before = server.broker.awaiting.waiting
    asked = asyncio.ensure_future(due(peer, LONG, since_ms))
    await eventually(lambda: server.broker.awaiting.waiting > before)
    # A call without a wait forces another look, which must leave the first call waiting.
    await due(await Peer.to(server.broker_address))
    assert not asked.done()
    return asked


async def test_due_transactions_are_told_at_once_and_only_once(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        for name in "abc":
            await hold(peer, name)
        await decide(peer, 1)
        first = await due(peer)
        assert (first.due, first.undecided, first.next_due_at_ms) == (0, 2, T0 + AFTER)
        clock.advance(ms=AFTER)
        told = await due(peer, wait_ms=LONG)
        assert (told.due, told.undecided, told.next_due_at_ms) == (2, 2, None)
        assert (told.now_ms, told.log_end) == (T0 + AFTER, server.broker.store.durable_end)
        waits = await begin(server, peer, since_ms=told.now_ms)
        assert (await due(await Peer.to(server.broker_address), since_ms=told.now_ms)).due == 2
        waits.cancel()


async def test_a_waiting_pipeline_is_told_when_a_check_comes_due(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await hold(other, "a")
        waits = [await begin(server, one, since_ms=T0) for one in (peer, other)]
        clock.advance(ms=AFTER)
        assert [(await one).due for one in waits] == [1, 1]
        assert server.broker.awaiting.waiting == 0


async def test_a_waiting_pipeline_is_told_of_a_later_transaction_that_is_due_earlier(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await hold(other, "a")
        waits = await begin(server, peer, since_ms=T0)
        await hold(other, "b", check_after_ms=0)
        told = await waits
        assert (told.due, told.undecided) == (1, 2)
        # The same news is not told twice, even though the clock stands still.
        await begin(server, peer, since_ms=told.now_ms)


async def test_a_wait_ends_when_its_time_is_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        told = await due(peer, wait_ms=1, since_ms=T0)
        assert (told.due, told.undecided, told.next_due_at_ms) == (0, 0, None)


async def test_one_too_many_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaiting, "WAITING_MAX", 1)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await begin(server, peer)
        assert (await due(await Peer.to(server.broker_address), wait_ms=LONG)).due == 0


async def test_a_wait_goes_with_its_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        waits = await begin(server, peer)
        waits.cancel()
        peer.close()
        await eventually(lambda: not server.broker.awaiting.waiting)


async def test_waits_count_as_unanswered(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"unanswered_max": 2}) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        for opaque in range(5):
            header = AwaitDueHeader(wait_ms=LONG)
            peer.write(encode_call(NativeCode.AWAIT_DUE, opaque, header))
        await eventually(lambda: server.broker.awaiting.waiting)
        await due(other)
        assert server.broker.awaiting.waiting == 2


async def test_looks_take_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a very long rest, the second look does not happen before the test ends."""
    monkeypatch.setattr(awaiting, "REST", 10**9)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await due(peer)
        asked = asyncio.ensure_future(due(peer))
        await eventually(lambda: server.broker.awaiting.waiting)
        await ask(await Peer.to(server.broker_address), NativeCode.STATUS)
        assert not asked.done()
        asked.cancel()


async def test_a_stop_does_not_wait_for_waiting_pipelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        waits = await begin(server, peer)
        await server.stop()
        with pytest.raises(Unavailable, match="writer_closed"):
            await waits
        monkeypatch.setattr(server, "stop", nothing)


async def nothing() -> None:
    """Replace `stop` of a server that is already stopped."""


async def test_a_failed_store_is_told_to_waiting_and_to_new_pipelines(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        waits = await begin(server, peer)
        server.broker.store.failure = OSError("disk gone")
        for asked in (due(other), waits):
            with pytest.raises(Unavailable, match="store_failed"):
                await asked
        server.broker.store.failure = None


async def test_a_store_that_fails_meanwhile_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        server.broker.writer.between(lambda: fail(server))
        with pytest.raises(Unavailable, match="store_failed"):
            await due(peer)
        server.broker.store.failure = None


def fail(server: Server) -> None:
    server.broker.store.failure = OSError("disk gone")


async def test_decided_batches_and_new_runs_of_sinks_change_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting, "RUNS_MAX", 2)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        group = attempt(run=1).run.producer_group
        told = [await due(peer)]

        async def held(transaction_id: str, number: int = 0, group: str = group) -> bool:
            """Hold half messages; return whether `batches_decided` grew."""
            await hold(peer, transaction_id, producer_group=group, number=number, is_bulk=True)
            told.append(await due(peer))
            return bool(told[-1].batches_decided > told[-2].batches_decided)

        first = attempt(run=1).transaction_id
        assert not await held(first, group="pay")
        assert await held(attempt(run=1, partition=1).transaction_id)
        assert not await held(attempt(run=1, partition=2).transaction_id)
        assert not await held(attempt(run=1, partition=2).transaction_id, number=1)
        assert not await held("no attempt")
        assert await held(attempt(run=2).transaction_id)
        assert await held(attempt(run=3).transaction_id)
        # The broker remembers two runs and has forgotten this one.
        assert await held(attempt(run=1, partition=3).transaction_id)
        assert told[-1].sink_attempts == 6
        header = DecideBatchHeader(app_id="app", query_id="q", batch_number=0, by="driver")
        last = attempt(run=3).transaction_id
        claim = AttemptRow(transaction_id=last, last_number=0, messages=1)
        await ask(peer, NativeCode.DECIDE_BATCH, header, [claim])
        decided = await due(peer)
        assert decided.batches_decided > told[-1].batches_decided
        assert decided.sink_attempts == 5


def attempt(run: int, partition: int = 0) -> SinkAttempt:
    opened = SinkRun(app_id="app", query_id="write", run=f"{run:08x}", opened_at=T0 + run)
    return SinkAttempt(run=opened, batch="b", partition=partition, attempt=f"{partition:032x}")


async def test_asking_is_a_sign_of_life(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await ask(peer, NativeCode.STATUS)).header.pipeline_away_since_ms == T0
        await due(peer)
        told = (await ask(peer, NativeCode.STATUS)).header
        assert (told.last_verdict_at_ms, told.pipeline_away_since_ms) == (0, 0)
