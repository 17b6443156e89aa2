"""Bulk verdicts over a real socket, and the settler process that sends them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.checks import obeying
from escrowmq.broker.server import Server
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import (
    ByHeader,
    HoldManyHeader,
    ListTransactionsHeader,
    LogRangeHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm
from escrowmq.protocol.native.rows import VerdictRow
from escrowmq.testing import ManualClock
from escrowmq.testing.settler import CheckableTransaction, Round
from escrowmq.testing.settler_process import BrokerPort, settle_once
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.unit.broker.asking import answering, check, producer
from tests.unit.broker.native_peer import all_rows, ask, decide, hold, sent, sent_in
from tests.unit.broker.wire import COMMIT, DEADLINE_S, END, T0, Peer, eventually, serving, visible
from tests.unit.logged import event_of

LIST_OPS = NativeCode.LIST_OPS


def verdict(half_offset: int, kind: str, **fields: int | str) -> VerdictRow:
    values = {"state": 0, "checks_sent": 0, "reason": None, **fields}
    return VerdictRow(half_offset=half_offset, verdict=kind, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", list(RowForm))
async def test_every_verdict_is_told_how_it_ended(tmp_path: Path, form: RowForm) -> None:
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
        answer = await ask(peer, NativeCode.OBEY_VERDICTS, ByHeader(form=form, by="round 7"), rows)
        assert [(row.half_offset, row.outcome) for row in answer.rows] == [
            (0, "committed"),
            (1, "rolled_back"),
            (2, "parked"),
            (3, "no_producer"),
            (3, "stale"),
            (99, "stale"),
        ]
        store = server.broker.store
        assert store.table.decided_by(store.core.row(0))[0] == "round 7"


async def test_a_producer_is_asked_because_a_verdict_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        member = await producer(server, "p1")
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t", sent(b"paid"))
        answer = await ask(peer, NativeCode.OBEY_VERDICTS, rows=[verdict(0, "ask")])
        assert answer.rows[0].outcome == "asked"
        header, message = await check(member)
        assert message.body == b"paid"
        member.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))


async def test_no_verdicts_are_a_sign_of_life(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        before = (await ask(peer, NativeCode.STATUS)).header
        assert (before.last_verdict_at_ms, before.pipeline_away_since_ms) == (0, T0)
        assert (await ask(peer, NativeCode.OBEY_VERDICTS)).rows == []
        after = (await ask(peer, NativeCode.STATUS)).header
        assert (after.last_verdict_at_ms, after.pipeline_away_since_ms) == (T0, 0)


@pytest.mark.parametrize("row", [verdict(0, "maybe"), verdict(0, "commit", state=9)])
async def test_a_verdict_that_is_none_refuses_the_request(tmp_path: Path, row: VerdictRow) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t")
        with pytest.raises(RequestRefused, match="verdict_unknown"):
            await ask(peer, NativeCode.OBEY_VERDICTS, rows=[verdict(0, "commit"), row])
        assert server.broker.store.core.row(0).state is State.PREPARED


# Thousands of verdicts.


async def hold_many(peer: Peer, count: int) -> None:
    rows = [sent_in(f"t{number}") for number in range(count)]
    await ask(peer, NativeCode.HOLD_MANY, HoldManyHeader(producer_group="pay"), rows)


@pytest.mark.parametrize("form", list(RowForm))
async def test_very_many_are_decided_in_slices_between_which_others_have_their_turn(
    tmp_path: Path, form: RowForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obeying, "SLICE_ROWS", 10)
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await hold_many(peer, 95)
        before = server.broker.store.log.end
        rows = [verdict(row, "commit" if row % 2 else "rollback") for row in range(95)]
        asked = asyncio.ensure_future(
            ask(peer, NativeCode.OBEY_VERDICTS, ByHeader(form=form), rows)
        )
        await eventually(lambda: server.broker.store.durable_end > before)
        await ask(other, NativeCode.STATUS)
        assert not asked.done()
        outcomes = [row.outcome for row in (await asked).rows]
        assert outcomes == ["rolled_back", "committed"] * 47 + ["rolled_back"]
        assert len(visible(server)) == 47
        frames = {op.log_offset for op in await all_rows(peer, LIST_OPS, LogRangeHeader())}
        assert len(frames) == 10


async def test_transactions_that_cannot_be_decided_together_are_decided_one_by_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "two", sent(b"1"), sent(b"2"))
        await hold(peer, "delayed", sent(b"3", DELAY="1"))
        await hold(peer, "simple")
        rows = [verdict(row, "commit") for row in (1, 2, 3, 3, 99)]
        answer = await ask(peer, NativeCode.OBEY_VERDICTS, rows=rows)
        outcomes = ["committed", "committed", "committed", "stale", "stale"]
        assert [row.outcome for row in answer.rows] == outcomes
        assert [one.body for one in visible(server)] == [b"body", b"1", b"2"]


async def test_very_many_are_parked_and_none_is_told_to_come_again(tmp_path: Path) -> None:
    writer = {"messages_max": 4, "inbox_max": 8}
    async with serving(tmp_path, writer=writer) as server:
        peer = await Peer.to(server.broker_address)
        await hold_many(peer, 40)
        rows = [verdict(row, "park", reason="past_retention") for row in range(40)]
        answer = await ask(peer, NativeCode.OBEY_VERDICTS, rows=rows)
        assert {row.outcome for row in answer.rows} == {"parked"}


async def test_a_contradiction_among_many_raises_an_alert(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold_many(peer, 4)
        for row in (1, 2):
            await decide(peer, row, "rollback")
        rows = [verdict(row, "rollback" if row == 1 else "commit") for row in range(4)]
        answer = await ask(peer, NativeCode.OBEY_VERDICTS, ByHeader(by="round 7"), rows)
        assert [row.outcome for row in answer.rows] == ["committed", "stale", "stale", "committed"]
        told = [vars(one) for one in caplog.records if event_of(one) == "contradiction"]
        assert [(one["half_offset"], one["said"], one["said_by"]) for one in told] == [
            (2, "commit", "round 7")
        ]
        assert server.broker.contradictions.count == 1


async def test_verdicts_of_a_failed_store_are_not_known_and_later_ones_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold_many(peer, 3)
        await hold(peer, "two", sent(b"1"), sent(b"2"))

        def fail() -> None:
            raise OSError

        monkeypatch.setattr(server.broker.store.log, "write", fail)
        rows = [verdict(row, "commit") for row in range(4)]
        for expected in ("unknown", "busy"):
            answer = await ask(peer, NativeCode.OBEY_VERDICTS, rows=rows)
            assert {row.outcome for row in answer.rows} == {expected}


async def test_many_decisions_are_told_one_by_one(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await hold_many(peer, 4)
        clock.advance(seconds=3)
        kinds = ("commit", "rollback", "commit", "ask")
        rows = [verdict(row, kind) for row, kind in enumerate(kinds)]
        await ask(peer, NativeCode.OBEY_VERDICTS, ByHeader(by="round 7"), rows)
        ops = await all_rows(peer, LIST_OPS, LogRangeHeader(limit=1))
        assert [(op.head, op.first, op.message_count, op.state) for op in ops] == [
            (0, 0, 1, 1),
            (2, 2, 1, 1),
            (1, 1, 1, 2),
        ]
        assert {(op.decided_by, op.decided_at_ms, op.app_id) for op in ops} == {
            ("round 7", T0 + 3_000, None)
        }
        lines = [
            (await ask(peer, NativeCode.LIFE_LINE, TransactionHeader(half_offset=row))).rows
            for row in range(4)
        ]
        assert [[event.event for event in line] for line in lines] == [
            ["held", "committed", "visible"],
            ["held", "rolled_back"],
            ["held", "committed", "visible"],
            ["held"],
        ]
        assert lines[2][1].by == "round 7"
        assert lines[2][2].detail == "orders, queue 1, offsets 1 to 1"


# The settler.


async def settled(server: Server, **answers: Resolution) -> Round:
    """Run one round of the settler, in a thread because it blocks."""

    def look_up(half: CheckableTransaction) -> Resolution | None:
        return answers.get(half.transaction_id)

    def run() -> Round:
        with NativeCalls(server.broker_address) as calls:
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
        # The settler reports the failed round and continues.
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
    """Run the settler process."""
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
    """Hold a transaction that its producer decides only when asked."""
    member = await producer(server, f"producer of {transaction_id}")
    await hold(member, transaction_id, sent(transaction_id.encode()))
    clock.advance(seconds=7)
    header, message = await check(member)
    assert message.body == transaction_id.encode()
    member.tell(END, answering(header, COMMIT))
    await eventually(lambda: transaction_id.encode() in [one.body for one in visible(server)])
    listed = await ask(member, NativeCode.LIST_TRANSACTIONS, ListTransactionsHeader())
    assert listed.rows == []
