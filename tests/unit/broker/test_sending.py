"""Over a real socket: messages in, half messages held, transactions decided once."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import LongSendHeader
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
from tests.unit.protocol.batches import encode_batch

REFUSED = [
    (sending("RMQ_SYS_TRANS_HALF_TOPIC"), ResponseCode.NO_PERMISSION),
    (sending("a b"), ResponseCode.INVALID_PARAMETER),
    (sending(queue_id=4), ResponseCode.INVALID_PARAMETER),
    (sending(default_topic="nowhere"), ResponseCode.TOPIC_NOT_EXIST),
    (sending(properties={"DELAY": "x"}), ResponseCode.INVALID_PARAMETER),
]


async def test_a_message_is_stored_as_it_was_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        header = sending(properties={"UNIQ_KEY": "u1", "TAGS": "paid", "KEYS": "k1 k2"})
        answer = await peer.ask(SEND, header, b"body")
        assert answer.code == ResponseCode.SUCCESS
        assert facts(answer)["queueId"] == "1"
        assert facts(answer)["queueOffset"] == "0"
        (seen,) = visible(server)
        assert (seen.body, seen.flag, seen.born_at_ms, seen.stored_at_ms) == (
            b"body",
            7,
            T0 - 5,
            T0,
        )
        assert int(facts(answer)["msgId"][16:], 16) == seen.log_offset
        kept = parse_properties(seen.properties)
        assert kept == {
            "UNIQ_KEY": "u1",
            "TAGS": "paid",
            "KEYS": "k1 k2",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }


@pytest.mark.parametrize("is_binary", [False, True])
async def test_old_names_and_binary_headers_are_understood(
    tmp_path: Path, *, is_binary: bool
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        header = LongSendHeader(
            producer_group="pay",
            topic="orders",
            default_topic="TBW102",
            default_queue_count=4,
            queue_id=-1,
            sys_flag=0,
            born_at_ms=T0,
            flag=0,
        )
        answer = await peer.ask(RequestCode.SEND_MESSAGE, header, b"old", is_binary=is_binary)
        assert answer.is_binary is is_binary
        assert [one.body for one in visible(server, queue_id=0)] == [b"old"]
        assert parse_properties(visible(server, queue_id=0)[0].properties)["UNIQ_KEY"]


async def test_a_batch_is_stored_in_one_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        body = encode_batch([(0, b"a", b"TAGS\x01x"), (1, b"b", b"")])
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, sending(is_batch=True), body)
        assert [one.body for one in visible(server)] == [b"a", b"b"]
        ids = facts(answer)["msgId"].split(",")
        assert [int(one[16:], 16) for one in ids] == [one.log_offset for one in visible(server)]
        again = await peer.ask(SEND, sending(is_batch=True), body)
        assert again.code == ResponseCode.SUCCESS
        illegal = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, sending(sys_flag=4), body)
        assert illegal.code != ResponseCode.SUCCESS
        assert len(visible(server)) == 4


@pytest.mark.parametrize(("header", "code"), REFUSED)
async def test_a_message_that_cannot_be_stored_is_refused_with_rocketmqs_code(
    tmp_path: Path, header: object, code: ResponseCode
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, header, b"x")  # type: ignore[arg-type]
        assert answer.code == code
        assert answer.remark


async def test_a_half_message_is_seen_once_it_is_committed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t1"), b"paid")
        assert facts(answer)["transactionId"] == "t1"
        assert visible(server) == []
        peer.tell(END, ending(answer, COMMIT))
        again = await peer.ask(END, ending(answer, COMMIT))
        told = facts(again)
        assert (told["state"], told["atMs"], told["isRepeated"]) == ("committed", str(T0), "true")
        (seen,) = visible(server)
        assert seen.body == b"paid"
        assert seen.sys_flag & 0xC == 0x8
        kept = parse_properties(seen.properties)
        assert (kept["REAL_TOPIC"], kept["REAL_QID"]) == ("orders", "1")
        assert (kept["__transactionId__"], kept["TRAN_MSG"], kept["PGROUP"]) == (
            "t1",
            "true",
            "pay",
        )
        opposite = await peer.ask(END, ending(answer, ROLLBACK))
        assert opposite.code == ResponseCode.TRANSACTION_SHOULD_COMMIT
        assert facts(opposite)["state"] == "committed"


async def test_a_rolled_back_half_message_is_never_seen(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t1"), b"no")
        assert (await peer.ask(END, ending(answer, UNKNOWN))).code == ResponseCode.SUCCESS
        assert facts(await peer.ask(END, ending(answer, ROLLBACK)))["state"] == "rolled_back"
        late = await peer.ask(END, ending(answer, COMMIT))
        assert late.code == ResponseCode.TRANSACTION_SHOULD_ROLLBACK
        assert visible(server) == []


async def test_an_end_must_name_the_group_and_the_offsets_of_its_half_message(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, half("t1"), b"x")
        for wrong in (
            ending(answer, COMMIT, producer_group="others"),
            ending(answer, COMMIT, log_offset=1),
            ending(answer, COMMIT, half_offset=99),
            ending(answer, 5),
        ):
            assert (await peer.ask(END, wrong)).code == ResponseCode.SYSTEM_ERROR
        assert visible(server) == []


async def test_acknowledged_messages_are_there_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"plain")
        answer = await peer.ask(SEND, half("t1"), b"half")
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert [one.body for one in visible(server)] == [b"plain"]
        await peer.ask(END, ending(answer, COMMIT))
        assert [one.body for one in visible(server)] == [b"plain", b"half"]
