"""Verdicts in bulk over a real socket, and the settler's process that sends them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.own_calls import OwnCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_forms import Form
from escrowmq.protocol.own_headers import ByHeader, ListTransactionsHeader
from escrowmq.protocol.own_rows import VerdictRow
from escrowmq.testing import ManualClock
from escrowmq.testing.settler import Round, Undecided
from escrowmq.testing.settler_process import BrokerPort, settle_once
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import Resolution, State
from tests.unit.broker.asking import answering, check, producer
from tests.unit.broker.own_peer import ask, hold, sent
from tests.unit.broker.wire import COMMIT, DEADLINE_S, END, T0, Peer, eventually, serving, visible


def verdict(half_offset: int, kind: str, **fields: int | str) -> VerdictRow:
    values = {"state": 0, "checks_sent": 0, "reason": None, **fields}
    return VerdictRow(half_offset=half_offset, verdict=kind, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", list(Form))
async def test_every_verdict_is_told_how_it_ended(tmp_path: Path, form: Form) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name in "abcd":
            await hold(peer, name)
        rows = [
            verdict(0, "commit"),
            verdict(1, "rollback"),
            verdict(2, "park", reason="exhausted"),
            verdict(3, "ask"),
            verdict(3, "ask", checks_sent=1),
            verdict(99, "commit"),
        ]
        answer = await ask(peer, OwnCode.OBEY_VERDICTS, ByHeader(form=form, by="round 7"), rows)
        assert [(row.half_offset, row.outcome) for row in answer.rows] == [
            (0, "committed"),
            (1, "rolled_back"),
            (2, "parked"),
            (3, "no_producer"),
            (3, "stale"),
            (99, "stale"),
        ]
        store = server.broker.store
        assert store.table.decided_by(store.row(0))[0] == "round 7"


async def test_a_producer_is_asked_because_a_verdict_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        member = await producer(server, "p1")
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"paid"))
        answer = await ask(peer, OwnCode.OBEY_VERDICTS, rows=[verdict(0, "ask")])
        assert answer.rows[0].outcome == "asked"
        header, message = await check(member)
        assert message.body == b"paid"
        member.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))


async def test_no_verdicts_are_a_sign_of_life(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        before = (await ask(peer, OwnCode.STATUS)).header
        assert (before.last_verdict_at_ms, before.pipeline_away_since_ms) == (0, T0)
        assert (await ask(peer, OwnCode.OBEY_VERDICTS)).rows == []
        after = (await ask(peer, OwnCode.STATUS)).header
        assert (after.last_verdict_at_ms, after.pipeline_away_since_ms) == (T0, 0)


@pytest.mark.parametrize("row", [verdict(0, "maybe"), verdict(0, "commit", state=9)])
async def test_a_verdict_that_is_none_refuses_the_request(tmp_path: Path, row: VerdictRow) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        with pytest.raises(RequestRefused, match="verdict_unknown"):
            await ask(peer, OwnCode.OBEY_VERDICTS, rows=[verdict(0, "commit"), row])
        assert server.broker.store.row(0).state is State.PREPARED


# The settler.


async def settled(server: Server, **answers: Resolution) -> Round:
    """One round of the settler, in a thread because it waits."""

    def look_up(half: Undecided) -> Resolution | None:
        return answers.get(half.transaction_id)

    def run() -> Round:
        with OwnCalls(server.broker_address) as calls:
            return settle_once(BrokerPort(calls), look_up)

    return await asyncio.to_thread(run)


async def test_the_settler_goes_by_the_brokers_policy_and_clock(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    policy = {"check_after_ms": 100, "checks_max": 1, "check_backoff": 1.5}
    async with serving(tmp_path, clock, policy=policy) as server:
        peer = await producer(server, "p1")
        await hold(peer, "asked")
        await hold(peer, "absent", producer_group="nobody")
        await hold(peer, "known", ledger="uuid")
        assert await settled(server) == Round(waiting=[0, 1, 2])
        clock.advance(ms=100)
        done = await settled(server, known=Resolution.COMMIT)
        assert done == Round(asked=[0], no_producer=[1], committed=[2])
        clock.advance(ms=CheckPolicy().check_interval_ms)
        assert (await settled(server)).parked == [0]


async def test_the_settler_is_a_process_that_outlives_its_broker(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with AsyncExitStack() as stack:
        async with serving(tmp_path, clock) as server:
            address = server.broker_address
            settler = await stack.enter_async_context(settling(address))
            assert settler.stdout is not None
            assert await asyncio.wait_for(settler.stdout.readline(), DEADLINE_S) == b"ready\n"
            await ask_and_answer(server, clock, "one")
        # It notices, and goes on.
        assert settler.stderr is not None
        told = await asyncio.wait_for(settler.stderr.readline(), DEADLINE_S)
        assert b"round failed" in told
        port = int(address.rpartition(":")[2])
        async with serving(tmp_path, clock, broker={"port": port}) as again:
            await ask_and_answer(again, clock, "two")
        settler.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(settler.wait(), DEADLINE_S) == 0


@asynccontextmanager
async def settling(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The settler's process."""
    settler = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "escrowmq.testing.settler_process"),
        *("--broker", address, "--interval-ms", "5"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield settler
    finally:
        if settler.returncode is None:
            settler.kill()
        await settler.communicate()


async def ask_and_answer(server: Server, clock: ManualClock, transaction_id: str) -> None:
    """A transaction whose producer forgot it, until it is asked."""
    member = await producer(server, f"producer of {transaction_id}")
    await hold(member, transaction_id, sent(transaction_id.encode()))
    clock.advance(seconds=7)
    header, message = await check(member)
    assert message.body == transaction_id.encode()
    member.tell(END, answering(header, COMMIT))
    await eventually(lambda: transaction_id.encode() in [one.body for one in visible(server)])
    listed = await ask(member, OwnCode.LIST_TRANSACTIONS, ListTransactionsHeader())
    assert listed.rows == []
