"""Over a real socket: verdicts, answers of producers, and alerts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escrowmq.broker.checks import checking
from escrowmq.broker.server import Server
from escrowmq.broker.write import pace
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.store.table.undecided import prepared_by_origin
from escrowmq.testing import ManualClock, Settler, message
from escrowmq.testing.calls import Calls
from escrowmq.testing.settler import Round
from escrowmq.transaction.commands import Command, Decision, Prepare, Verdict, VerdictKind
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.states import State
from tests.unit.broker.asking import (
    ASK,
    FLOOD,
    PARK,
    PATIENT,
    answering,
    begin,
    check,
    connection_of,
    obey,
    producer,
    resume,
    row,
    stall,
    verdict,
    was_asked,
)
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    UNKNOWN,
    Peer,
    clock_of,
    ending,
    eventually,
    facts,
    half,
    serving,
    visible,
)
from tests.unit.logged import event_of, events

if TYPE_CHECKING:
    import pytest

# Answers.


async def test_an_answer_decides_and_unknown_is_kept_for_the_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        assert await obey(server, ASK) == "asked"
        header, _ = await check(peer)
        end = server.broker.store.log.end
        peer.tell(END, answering(header, UNKNOWN))
        await eventually(lambda: server.broker.store.log.end > end)
        end = server.broker.store.log.end
        # Neither an unknown resolution nor an unasked UNKNOWN leaves a record.
        peer.tell(END, answering(header, 3))
        peer.tell(END, ending(await peer.ask(SEND, half("t1"), b"paid"), UNKNOWN))
        assert row(server).state is State.PREPARED
        assert server.broker.store.log.end == end
        assert await obey(server, ASK, checks_sent=1) == "asked"
        header, _ = await check(peer)
        peer.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))
        assert [one.body for one in visible(server)] == [b"paid"]
        assert peer.kept == []


async def test_a_commit_that_comes_before_the_check_is_sent_makes_it_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "IN_USE_S", 60)
    monkeypatch.setattr(checking, "SLICE_BESIDE", 0)
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"x")
        told = begin(server, verdict(ASK))
        assert (await peer.ask(END, ending(sent, COMMIT))).code == ResponseCode.SUCCESS
        monkeypatch.setattr(checking, "SLICE_BESIDE", 1)
        assert (await told).value == "stale"
        assert not await was_asked(peer)


async def test_a_commit_that_overtakes_the_count_is_fine(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        sender = await producer(server, "sender")
        sent = await sender.ask(SEND, half("t1"), b"x")
        connection_of(server, "sender").send(FLOOD)
        told = await stall(server)
        sender.tell(END, ending(sent, COMMIT))
        await eventually(lambda: row(server).state is State.COMMITTED)
        await sender.read(len(FLOOD))
        assert (await told).value == "asked"
        header, _ = await check(sender)
        again = await sender.ask(END, answering(header, COMMIT))
        assert facts(again)["isRepeated"] == "true"
        assert len(visible(server)) == 1
        assert row(server).checks_sent == 0


# Verdicts.


async def test_verdicts_decide_and_park(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(3):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        kinds = (VerdictKind.COMMIT, VerdictKind.ROLLBACK, PARK)
        outcomes = [await obey(server, kind, number) for number, kind in enumerate(kinds)]
        assert outcomes == ["committed", "rolled_back", "parked"]
        again = [await obey(server, kind, number) for number, kind in enumerate(kinds)]
        assert again == ["stale", "stale", "stale"]
        assert await obey(server, PARK, 2, state=State.PARKED) == "refused"
        assert await obey(server, ASK, 99) == "stale"


async def test_after_all_checks_it_is_parked_and_a_person_can_resume_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"late")
        for number in range(15):
            assert await obey(server, ASK, checks_sent=number) == "asked"
            header, _ = await check(peer)
            peer.tell(END, answering(header, UNKNOWN))
        assert await obey(server, ASK, checks_sent=15) == "refused"
        assert await obey(server, PARK, checks_sent=15) == "parked"
        assert await obey(server, ASK, checks_sent=15) == "stale"
        assert (await resume(peer, facts(sent)["msgId"])).code == ResponseCode.SUCCESS
        assert await obey(server, ASK, checks_sent=0) == "asked"
        header, _ = await check(peer)
        # A verdict from before it was resumed has no effect.
        assert await obey(server, PARK, checks_sent=1) == "stale"
        clock_of(server).advance(ms=CheckPolicy().park_after_ms)
        assert await obey(server, PARK, checks_sent=1) == "parked"
        peer.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))
        assert row(server).state is State.COMMITTED


async def test_only_what_is_parked_can_be_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"x")
        message_id = facts(sent)["msgId"]
        for wrong, code in (
            (message_id, "not_parked"),
            (message_id[:-16] + "0" * 16, "message_unknown"),
            ("t1", "message_id_illegal"),
        ):
            answer = await resume(peer, wrong)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert code in answer.remark


async def test_a_verdict_has_an_unknown_outcome_if_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"x")

        def fail() -> None:
            raise OSError

        monkeypatch.setattr(server.broker.store.log, "write", fail)
        assert await obey(server, VerdictKind.COMMIT) == "unknown"
        assert await obey(server, VerdictKind.COMMIT) == "busy"


async def test_a_caller_that_cannot_be_told_does_not_stop_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"x")
        server.broker.checking.obey([verdict(ASK)], lambda _outcomes: 1 // 0)  # type: ignore[arg-type]
        await eventually(lambda: "outcome_not_told" in events(caplog))
        assert await obey(server, ASK, checks_sent=1) == "asked"


# Alerts.


def alerts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    wanted = ("half_offset", "said", "said_by", "state", "decided_by")
    return [
        {name: vars(record)[name] for name in wanted}
        for record in caplog.records
        if event_of(record) == "contradiction"
    ]


async def test_a_producer_that_contradicts_a_settlement_raises_one_alert(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"x")
        assert await obey(server, VerdictKind.ROLLBACK) == "rolled_back"
        await peer.ask(END, ending(sent, ROLLBACK))
        assert alerts(caplog) == []
        peer.tell(END, ending(sent, COMMIT))
        await peer.ask(END, ending(sent, COMMIT))
        assert alerts(caplog) == [
            {
                "half_offset": 0,
                "said": "commit",
                "said_by": "p",
                "state": "rolled_back",
                "decided_by": "settle",
            }
        ]
        assert server.broker.contradictions.count == 1


async def test_a_settlement_that_contradicts_a_producer_raises_one_alert(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"x")
        await peer.ask(END, ending(sent, ROLLBACK))
        assert await obey(server, VerdictKind.ROLLBACK) == "stale"
        assert alerts(caplog) == []
        for _ in range(2):
            assert await obey(server, VerdictKind.COMMIT) == "stale"
        assert alerts(caplog) == [
            {
                "half_offset": 0,
                "said": "commit",
                "said_by": "settle",
                "state": "rolled_back",
                "decided_by": "p",
            }
        ]


# Questions.


async def test_status_counts_the_transactions_that_wait_for_a_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(3):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        await peer.ask(SEND, half("t3", PGROUP="others"), b"x")
        asking = server.broker.checking

        def unreachable() -> int:
            return asking.unreachable_count(prepared_by_origin(server.broker.store.table))

        assert unreachable() == 4
        await obey(server, PARK, 0)
        await obey(server, VerdictKind.COMMIT, 1)
        assert unreachable() == 2
        await producer(server, "p")
        assert (asking.online("pay"), asking.online("others")) == (1, 0)
        assert unreachable() == 1
        # A ledger can answer for this transaction.
        held = Prepare(group="others", transaction_id="t4", messages=(message(),), ledger="uuid")
        await server.broker.writer.submit(held)
        assert unreachable() == 1


# A settler.


class BrokerPort(Calls):
    """A broker in this process, called from another thread."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        super().__init__(clock, None)
        self._server = server
        self._loop = asyncio.get_running_loop()

    @property
    def core(self) -> Transactions:
        return self._server.broker.store.core

    def submit(self, command: Command) -> Decision:
        raise NotImplementedError

    def due(self, until_ms: int, limit: int) -> list[int]:
        return self._server.broker.store.table.due(until_ms, limit)

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        async def all_of_them() -> list[VerdictOutcome]:
            told = [begin(self._server, one) for one in verdicts]
            return [await one for one in told]

        return asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result()


async def test_a_settler_drives_a_broker_whose_producers_answer_by_themselves(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1_700_000_000_000)
    async with serving(tmp_path, clock=clock) as server:
        policy = server.broker.store.core.policy
        settler = Settler(BrokerPort(server, clock), policy)
        run: Callable[[], Round] = settler.run_once
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"paid")
        await peer.ask(SEND, half("t2", PGROUP="others"), b"x")
        assert await asyncio.to_thread(run) == Round(waiting=[0, 1])
        clock.advance(ms=policy.check_after_ms)
        assert await asyncio.to_thread(run) == Round(asked=[0], no_producer=[1])
        header, _ = await check(peer)
        peer.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))
        clock.advance(ms=policy.park_after_ms)
        assert await asyncio.to_thread(run) == Round(parked=[1])
