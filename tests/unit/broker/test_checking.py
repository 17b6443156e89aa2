"""Over a real socket: verdicts obeyed, and producers asked what became of their transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker import checking, connection
from escrowmq.broker.connection import Connection
from escrowmq.broker.server import Server
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.bodies import encode_body
from escrowmq.protocol.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.properties import parse_properties
from escrowmq.protocol.remoting import Frame
from escrowmq.protocol.send_headers import (
    CheckTransactionHeader,
    EndTransactionHeader,
    ResumeCheckHeader,
)
from escrowmq.protocol.stored_message import StoredMessage, decode
from escrowmq.testing import ManualClock, Settler
from escrowmq.testing.calls import Calls
from escrowmq.testing.settler import Round
from escrowmq.transaction.commands import Command, Decision, Verdict, VerdictKind
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    UNKNOWN,
    Peer,
    ending,
    eventually,
    facts,
    half,
    serving,
    visible,
)

ASK, PARK = VerdictKind.ASK, VerdictKind.PARK
#: More than sockets take from a broker whose peer does not read.
FLOOD = bytes(16 * 1024 * 1024)
PATIENT = {"slow_bytes": 2 * len(FLOOD), "unread_bytes_max": 4 * len(FLOOD)}


async def producer(
    server: Server, client_id: str, *, group: str = "pay", is_binary: bool = False
) -> Peer:
    """A member of a producer group."""
    peer = await Peer.to(server.broker_address)
    said = Heartbeat(client_id=client_id, producers=(ProducerMembership(group=group),))
    await peer.ask(RequestCode.HEART_BEAT, body=encode_body(said), is_binary=is_binary)
    return peer


def connection_of(server: Server, client_id: str) -> Connection:
    members = server.broker.clients.producers("pay")
    return next(one.connection for one in members if one.client_id == client_id)


def verdict(kind: VerdictKind, half_offset: int = 0, **fields: Any) -> Verdict:  # noqa: ANN401
    values: dict[str, Any] = {"state": State.PREPARED, "checks_sent": 0, **fields}
    return Verdict(half_offset=half_offset, kind=kind, **values)


def begin(server: Server, said: Verdict) -> asyncio.Future[VerdictOutcome]:
    told: asyncio.Future[VerdictOutcome] = asyncio.get_running_loop().create_future()
    server.broker.checking.obey(said, told.set_result)
    return told


async def obey(server: Server, kind: VerdictKind, half_offset: int = 0, **fields: Any) -> str:  # noqa: ANN401
    return (await begin(server, verdict(kind, half_offset, **fields))).value


async def stall(server: Server, half_offset: int = 0) -> asyncio.Future[VerdictOutcome]:
    """Have a check sent to somebody who does not read."""
    told = begin(server, verdict(ASK, half_offset))
    # Never two checks of one transaction at a time.  The second is heard after the first was sent.
    assert await obey(server, ASK, half_offset) == "busy"
    assert not told.done()
    return told


async def check(peer: Peer) -> tuple[CheckTransactionHeader, StoredMessage]:
    """The next back-check that a producer gets."""
    frame = await peer.until(is_check)
    assert frame.is_one_way
    return header_of(frame), decode(frame.body)


def is_check(frame: Frame) -> bool:
    return frame.code == RequestCode.CHECK_TRANSACTION_STATE and not frame.is_response


def header_of(frame: Frame) -> CheckTransactionHeader:
    told = facts(frame)
    return CheckTransactionHeader(
        topic=told["topic"],
        half_offset=int(told["tranStateTableOffset"]),
        log_offset=int(told["commitLogOffset"]),
        unique_key=told["msgId"],
        transaction_id=told["transactionId"],
        offset_message_id=told["offsetMsgId"],
        broker_name=told["bname"],
    )


def answering(header: CheckTransactionHeader, bits: int) -> EndTransactionHeader:
    """What a stock client makes of a check."""
    return EndTransactionHeader(
        topic=header.topic or "",
        producer_group="pay",
        half_offset=header.half_offset,
        log_offset=header.log_offset,
        resolution_bits=bits,
        is_check_answer=True,
        unique_key=header.unique_key or "",
        transaction_id=header.transaction_id or "",
    )


def row(server: Server, half_offset: int = 0) -> Half:
    return server.broker.store.core.row(half_offset)


async def was_asked(peer: Peer) -> bool:
    """Whether a check came before the answer to what is asked now."""
    await peer.ask(RequestCode.CHECK_CLIENT_CONFIG)
    return any(map(is_check, peer.kept))


# Who is asked.


async def test_the_sender_is_asked_with_what_it_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        other, origin = await producer(server, "other"), await producer(server, "origin")
        sent = await origin.ask(SEND, half("t1", KEYS="k1", TAGS="paid"), b"paid")
        assert await obey(server, ASK) == "asked"
        header, asked = await check(origin)
        assert header == CheckTransactionHeader(
            topic="RMQ_SYS_TRANS_HALF_TOPIC",
            half_offset=0,
            log_offset=asked.log_offset,
            unique_key="t1",
            transaction_id="t1",
            offset_message_id=facts(sent)["msgId"],
            broker_name="broker-a",
        )
        assert (asked.topic, asked.queue_id, asked.body, asked.flag) == ("orders", 1, b"paid", 7)
        assert (
            parse_properties(asked.properties).items()
            >= {
                "KEYS": "k1",
                "TAGS": "paid",
                "PGROUP": "pay",
                "UNIQ_KEY": "t1",
                "TRANSACTION_CHECK_TIMES": "1",
            }.items()
        )
        assert row(server).checks_sent == 1
        assert not await was_asked(other)


async def test_the_others_are_asked_in_turn_when_the_sender_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        origin = await producer(server, "origin")
        await origin.ask(SEND, half("t1"), b"x")
        first, second = await producer(server, "first"), await producer(server, "second")
        await producer(server, "stranger", group="others")
        await origin.closed()
        await eventually(lambda: server.broker.checking.online("pay") == 2)
        for number, asked in enumerate((first, second, first)):
            assert await obey(server, ASK, checks_sent=number) == "asked"
            _, message = await check(asked)
            number_told = parse_properties(message.properties)["TRANSACTION_CHECK_TIMES"]
            assert number_told == str(number + 1)


async def test_somebody_who_only_sent_is_not_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"x")
        member = await producer(server, "member")
        assert await obey(server, ASK) == "asked"
        await check(member)


async def test_no_producer_online_is_no_attempt_and_leaves_no_record(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "stranger", group="others")
        await peer.ask(SEND, half("t1"), b"x")
        end = server.broker.store.log.end
        for _ in range(3):
            assert await obey(server, ASK) == "no_producer"
        assert row(server).checks_sent == 0
        assert server.broker.store.log.end == end


async def test_a_sender_that_does_not_read_is_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        origin = await producer(server, "origin")
        await origin.ask(SEND, half("t1"), b"x")
        await origin.ask(SEND, half("t2"), b"x")
        connection_of(server, "origin").send(FLOOD)
        await eventually(lambda: not connection_of(server, "origin").has_room)
        assert await obey(server, ASK) == "busy"
        other = await producer(server, "other")
        assert await obey(server, ASK) == "asked"
        await check(other)
        assert row(server).checks_sent == 1


@pytest.mark.parametrize("is_binary", [False, True])
async def test_a_producer_is_asked_in_the_form_in_which_it_writes(
    tmp_path: Path, *, is_binary: bool
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p", is_binary=is_binary)
        await peer.ask(SEND, half("t1"), b"x", is_binary=is_binary)
        assert await obey(server, ASK) == "asked"
        frame = await peer.until(is_check)
        assert frame.is_binary is is_binary
        assert header_of(frame).unique_key == "t1"


# What counts.


async def test_a_check_counts_once_the_socket_took_it(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        origin = await producer(server, "origin")
        await origin.ask(SEND, half("t1"), b"x")
        connection_of(server, "origin").send(FLOOD)
        told = await stall(server)
        assert row(server).checks_sent == 0
        assert not told.done()
        await origin.read(len(FLOOD))
        await check(origin)
        assert (await told).value == "asked"
        assert row(server).checks_sent == 1


async def test_a_check_that_a_dying_connection_did_not_take_goes_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        origin = await producer(server, "origin")
        await origin.ask(SEND, half("t1"), b"x")
        other = await producer(server, "other")
        connection_of(server, "origin").send(FLOOD)
        told = await stall(server)
        await origin.closed()
        assert (await told).value == "asked"
        await check(other)
        assert row(server).checks_sent == 1


async def test_who_takes_nothing_for_too_long_is_passed_over_until_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TAKEN_S_MAX", 0.02)
    async with serving(tmp_path, broker=PATIENT) as server:
        origin = await producer(server, "origin")
        await origin.ask(SEND, half("t1"), b"x")
        connection_of(server, "origin").send(FLOOD)
        assert await obey(server, ASK) == "busy"
        assert not connection_of(server, "origin").has_room
        assert row(server).checks_sent == 0
        await origin.read(len(FLOOD))
        await check(origin)
        assert await obey(server, ASK) == "asked"


async def test_what_was_taken_is_counted_even_if_the_writer_is_busy(tmp_path: Path) -> None:
    writer = {"inbox_max": 2, "messages_max": 1}
    async with serving(tmp_path, broker=PATIENT, writer=writer) as server:
        origin = await producer(server, "origin")
        for number in range(3):
            await origin.ask(SEND, half(f"t{number}"), b"x")
        connection_of(server, "origin").send(FLOOD)
        told = [await stall(server, number) for number in range(3)]
        await origin.read(len(FLOOD))
        assert [(await one).value for one in told] == ["asked"] * 3
        assert [row(server, number).checks_sent for number in range(3)] == [1, 1, 1]


async def test_there_is_a_limit_to_how_many_are_asked_about_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "ASKED_MAX", 40)
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        for number in range(50):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        told = [begin(server, verdict(ASK, number)) for number in range(50)]
        outcomes = [(await one).value for one in told]
        assert outcomes == ["asked"] * 40 + ["busy"] * 10
        asked = [(await check(peer))[0].half_offset for _ in range(40)]
        assert asked == list(range(40))


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
        # Neither a guess nor an UNKNOWN that nobody asked for leaves a record.
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
    monkeypatch.setattr(checking, "SLICE_MAX", 0)
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        sent = await peer.ask(SEND, half("t1"), b"x")
        told = begin(server, verdict(ASK))
        assert (await peer.ask(END, ending(sent, COMMIT))).code == ResponseCode.SUCCESS
        monkeypatch.setattr(checking, "SLICE_MAX", 1)
        assert (await told).value == "stale"
        assert not await was_asked(peer)


async def test_a_commit_that_overtakes_the_count_is_fine(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        origin = await producer(server, "origin")
        sent = await origin.ask(SEND, half("t1"), b"x")
        connection_of(server, "origin").send(FLOOD)
        told = await stall(server)
        origin.tell(END, ending(sent, COMMIT))
        await eventually(lambda: row(server).state is State.COMMITTED)
        await origin.read(len(FLOOD))
        assert (await told).value == "asked"
        header, _ = await check(origin)
        again = await origin.ask(END, answering(header, COMMIT))
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
        assert await obey(server, PARK, checks_sent=1) == "parked"
        peer.tell(END, answering(header, COMMIT))
        await eventually(lambda: visible(server))
        assert row(server).state is State.COMMITTED


async def resume(peer: Peer, message_id: str) -> Frame:
    header = ResumeCheckHeader(offset_message_id=message_id)
    return await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)


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


async def test_when_the_store_fails_nobody_knows_how_a_verdict_ended(
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


async def test_who_cannot_be_told_does_not_stop_the_writer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        await peer.ask(SEND, half("t1"), b"x")
        server.broker.checking.obey(verdict(ASK), lambda _outcome: 1 // 0)  # type: ignore[arg-type]
        await eventually(lambda: "outcome_not_told" in caplog.messages)
        assert await obey(server, ASK, checks_sent=1) == "asked"


# Alerts.


def alerts(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    wanted = ("half_offset", "said", "said_by", "state", "decided_by")
    return [
        {name: vars(record)[name] for name in wanted}
        for record in caplog.records
        if record.message == "contradiction"
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


async def test_status_can_tell_who_waits_for_a_producer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(3):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        await peer.ask(SEND, half("t3", PGROUP="others"), b"x")
        asking = server.broker.checking
        assert asking.unreachable_count() == 4
        await obey(server, PARK, 0)
        await obey(server, VerdictKind.COMMIT, 1)
        assert asking.unreachable_count() == 2
        await producer(server, "p")
        assert (asking.online("pay"), asking.online("others")) == (1, 0)
        assert asking.unreachable_count() == 1


# A settler.


class BrokerPort(Calls):
    """A broker in this process, asked from another thread."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.clock = clock

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
