"""The broker ends a producer's transaction once, and answers with the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.headers import TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import encode_request
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.states import State
from tests.conformance.talk import clock_of
from tests.unit.broker.asking import begin, row, verdict
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    T0,
    UNKNOWN,
    Peer,
    ending,
    facts,
    half,
    sending,
    serving,
    visible,
)


async def test_a_one_way_end_gets_no_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        for said in (
            ending(answer, COMMIT, producer_group="others"),
            ending(answer, UNKNOWN),
            ending(answer, 5),
            ending(answer, COMMIT),
            ending(answer, ROLLBACK),
        ):
            peer.tell(END, said)
        await peer.ask(SEND, sending(), b"after it")
        assert list(peer.kept) == []
        assert [one.body for one in visible(server)] == [b"x", b"after it"]


async def test_a_repeated_commit_publishes_nothing(tmp_path: Path) -> None:
    """Apache's broker publishes the message again each time."""
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        answer = await peer.ask(SEND, half("t"), b"x")
        for who in (peer, other, peer):
            assert (await who.ask(END, ending(answer, COMMIT))).code == ResponseCode.SUCCESS
        assert len(visible(server)) == 1


@pytest.mark.parametrize("is_check_answer", [False, True])
@pytest.mark.parametrize(("said", "seen"), [(COMMIT, 1), (ROLLBACK, 0)])
async def test_an_answer_is_never_too_late(
    tmp_path: Path, said: int, seen: int, *, is_check_answer: bool
) -> None:
    """After the sender's own check time, Apache's broker answers 604 and waits for a back-check."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", CHECK_IMMUNITY_TIME_IN_SECONDS="60"), b"x")
        clock_of(server).advance(ms=65_000)
        late = ending(answer, said, is_check_answer=is_check_answer)
        assert (await peer.ask(END, late)).code == ResponseCode.SUCCESS
        assert len(visible(server)) == seen


async def test_only_a_half_message_can_be_ended(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        plain = await peer.ask(SEND, sending(), b"plain")
        await peer.ask(SEND, half("t"), b"half")
        named = ending(plain, COMMIT, unique_key="t")
        assert (await peer.ask(END, named)).code == ResponseCode.SYSTEM_ERROR
        assert row(server).state is State.PREPARED


async def test_an_end_must_name_the_id_of_its_half_message(tmp_path: Path) -> None:
    """RocketMQ compares the group and the offsets only."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        other = ending(answer, COMMIT, unique_key="another")
        assert (await peer.ask(END, other)).code == ResponseCode.SYSTEM_ERROR
        assert row(server).state is State.PREPARED
        assert (await peer.ask(END, ending(answer, COMMIT))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (COMMIT, ROLLBACK, ResponseCode.TRANSACTION_SHOULD_COMMIT),
        (ROLLBACK, COMMIT, ResponseCode.TRANSACTION_SHOULD_ROLLBACK),
    ],
)
async def test_the_opposite_decision_is_refused_with_the_author_and_time_of_the_first(
    tmp_path: Path, first: int, second: int, code: ResponseCode
) -> None:
    async with serving(tmp_path) as server:
        one, other = [await Peer.to(server.broker_address) for _ in range(2)]
        answer = await one.ask(SEND, half("t"), b"x")
        await one.ask(END, ending(answer, first))
        clock_of(server).advance(ms=1_000)
        refused = await other.ask(END, ending(answer, second))
        assert refused.code == code
        told = facts(refused)
        assert (told["by"], told["atMs"]) == (one.address, str(T0))
        assert len(visible(server)) == (first == COMMIT)


@pytest.mark.parametrize("size", [1_024, 1_025, 3_000])
async def test_a_long_remark_is_kept_up_to_1024_characters(tmp_path: Path, size: int) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        unknown = ending(answer, UNKNOWN, is_check_answer=True)
        peer.write(encode_request(END, 0, header=unknown, remark="é" * size, is_one_way=True))
        await peer.ask(SEND, sending(), b"after it")
        line = await all_rows(peer, NativeCode.LIFE_LINE, TransactionHeader(half_offset=0))
        (answered,) = (one for one in line if one.event == "answered")
        assert answered.detail == f"check 0: {'é' * 1_024}"


async def test_an_end_that_waits_for_an_answer_always_gets_one(tmp_path: Path) -> None:
    """Apache's broker does not answer "unknown", so the sender waits until its timeout."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        for is_check_answer in (False, True):
            unknown = ending(answer, UNKNOWN, is_check_answer=is_check_answer)
            assert (await peer.ask(END, unknown)).code == ResponseCode.SUCCESS
        assert (await peer.ask(END, ending(answer, 4))).code == ResponseCode.SYSTEM_ERROR
        assert row(server).state is State.PREPARED


@pytest.mark.parametrize("is_binary", [False, True])
async def test_the_remark_of_an_unknown_is_kept(tmp_path: Path, *, is_binary: bool) -> None:
    """Stock clients send the text of the exception that their check raised, one-way."""
    remark = "checkLocalTransactionState Exception: java.lang.RuntimeException: no table"
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        unknown = ending(answer, UNKNOWN, is_check_answer=True)
        peer.write(
            encode_request(
                END, 0, header=unknown, remark=remark, is_one_way=True, is_binary=is_binary
            )
        )
        await peer.ask(SEND, sending(), b"after it")
        line = await all_rows(peer, NativeCode.LIFE_LINE, TransactionHeader(half_offset=0))
        (answered,) = (one for one in line if one.event == "answered")
        assert answered.detail == f"check 0: {remark}"
        assert row(server).state is State.PREPARED


async def test_a_commit_decides_what_was_given_up_and_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t"), b"x")
        parked = await begin(server, verdict(VerdictKind.PARK))
        assert parked is VerdictOutcome.PARKED
        assert visible(server) == []
        for _ in range(2):
            assert (await peer.ask(END, ending(answer, COMMIT))).code == ResponseCode.SUCCESS
        assert len(visible(server)) == 1


async def test_the_offsets_of_a_half_message_are_good_for_ever(tmp_path: Path) -> None:
    """Apache's broker copies a half message at each check, and loses answers to the old offsets."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", CHECK_IMMUNITY_TIME_IN_SECONDS="600"), b"x")
        end_of_log = server.broker.store.log.end
        clock_of(server).advance(ms=599_000)
        outcome = await begin(server, verdict(VerdictKind.ASK))
        assert outcome is VerdictOutcome.NO_PRODUCER
        assert server.broker.store.log.end == end_of_log
        assert row(server).checks_sent == 0
        await peer.ask(END, ending(answer, COMMIT))
        (seen,) = visible(server)
        assert seen.log_offset == int(facts(answer)["msgId"][16:], 16)


async def test_a_committed_message_is_what_consumers_of_rocketmq_expect(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t", TAGS="paid"), b"x")
        clock_of(server).advance(ms=500)
        await peer.ask(END, ending(answer, COMMIT))
        (seen,) = visible(server)
        half_at = int(facts(answer)["msgId"][16:], 16)
        assert (seen.topic, seen.queue_id, seen.queue_offset) == ("orders", 1, 0)
        assert (seen.sys_flag & 0xC, seen.prepared_offset) == (0x8, half_at)
        assert (seen.born_at_ms, seen.stored_at_ms) == (T0 - 5, T0 + 500)
        assert (seen.body, seen.flag, seen.reconsume_times) == (b"x", 7, 0)
        assert parse_properties(seen.properties) == {
            "UNIQ_KEY": "t",
            "TRAN_MSG": "true",
            "PGROUP": "pay",
            "TAGS": "paid",
            "REAL_TOPIC": "orders",
            "REAL_QID": "1",
            "__transactionId__": "t",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }
