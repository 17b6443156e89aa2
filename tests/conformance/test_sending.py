"""How the broker handles messages that stock producers send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.protocol.message.limits import BODY_BYTES_MAX
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.send_headers import SendHeader
from tests.conformance.talk import clock_of
from tests.unit.broker.wire import (
    COMMIT,
    END,
    SEND,
    Peer,
    ending,
    eventually,
    facts,
    half,
    sending,
    serving,
    visible,
)
from tests.unit.protocol.batches import encode_batch


async def test_the_property_makes_a_half_message_and_not_the_flag(tmp_path: Path) -> None:
    """Apache's broker stores a message with only the flag where no consumer reads."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, sending(sys_flag=4), b"flag alone")).code == 0
        unflagged = sending(properties={"TRAN_MSG": "TRUE", "PGROUP": "pay", "UNIQ_KEY": "t"})
        assert "transactionId" in facts(await peer.ask(SEND, unflagged, b"property alone"))
        assert [one.body for one in visible(server)] == [b"flag alone"]
        assert visible(server)[0].sys_flag & 0xC == 0


async def test_a_message_given_back_by_an_old_client_is_no_half_message(tmp_path: Path) -> None:
    left_over = {"TRAN_MSG": "true", "PGROUP": "pay", "UNIQ_KEY": "t", "DELAY": "3"}
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, sending(properties=left_over, reconsume_times=1), b"again")
        assert "transactionId" not in facts(answer)
        clock_of(server).advance(ms=10_000)
        await eventually(lambda: visible(server))


async def test_a_producer_is_told_what_it_needs_to_end_its_transaction(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t0"), b"first")
        told = facts(await peer.ask(SEND, half("t1"), b"second"))
        row = server.broker.store.core.row(1)
        assert int(told["msgId"][16:], 16) == row.log_offset
        assert (told["queueId"], told["queueOffset"], told["transactionId"]) == ("1", "1", "t1")
        assert (told["MSG_REGION"], told["TRACE_ON"]) == ("DefaultRegion", "true")


async def test_a_half_message_without_a_key_gets_one(tmp_path: Path) -> None:
    keyless = sending(properties={"TRAN_MSG": "true", "PGROUP": "pay"}, sys_flag=4)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, keyless, b"x")
        made_up = facts(answer)["transactionId"]
        assert len(made_up) == 32
        await peer.ask(END, ending(answer, COMMIT))
        kept = parse_properties(visible(server)[0].properties)
        assert kept["UNIQ_KEY"] == kept["__transactionId__"] == made_up


async def test_a_half_message_without_a_group_belongs_to_the_group_of_its_request(
    tmp_path: Path,
) -> None:
    groupless = sending(properties={"TRAN_MSG": "true", "UNIQ_KEY": "t"}, sys_flag=4)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(SEND, groupless, b"x")
        assert (await peer.ask(END, ending(answer, COMMIT))).code == ResponseCode.SUCCESS
        assert [one.body for one in visible(server)] == [b"x"]


async def test_a_receipt_that_came_with_a_consumed_message_is_not_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(properties={"POP_CK": "0 1 2", "a": "b"}), b"x")
        kept = parse_properties(visible(server)[0].properties)
        assert "POP_CK" not in kept
        assert kept["a"] == "b"


async def test_a_message_without_a_queue_goes_to_one_after_the_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for _ in range(4):
            await peer.ask(SEND, sending(queue_id=-1), b"x")
        assert [len(visible(server, queue_id=at)) for at in range(4)] == [1, 1, 1, 1]


async def test_a_one_way_message_gets_no_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        peer.tell(SEND, sending(), b"one-way")
        peer.tell(SEND, sending("RMQ_SYS_TRANS_HALF_TOPIC"), b"refused")
        await peer.ask(SEND, sending(), b"two-way")
        assert peer.kept == []
        assert [one.body for one in visible(server)] == [b"one-way", b"two-way"]


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (sending(), b"x" * (BODY_BYTES_MAX + 1)),
        (sending(properties={"a": "b" * 32_767}), b"x"),
        (half("t", a="b" * 32_700), b"x"),
    ],
    ids=["body", "properties", "properties of a half message"],
)
async def test_a_message_that_is_too_large_is_illegal(
    tmp_path: Path, header: SendHeader, body: bytes
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, header, body)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (sending(), bytes(BODY_BYTES_MAX)),
        # The broker adds its region, its cluster and the message's key.
        (sending(properties={"a": "b" * 32_500}), b"x"),
    ],
    ids=["body", "properties"],
)
async def test_a_message_as_large_as_it_may_be_is_stored(
    tmp_path: Path, header: SendHeader, body: bytes
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, header, body)).code == ResponseCode.SUCCESS
        assert [len(one.body) for one in visible(server)] == [len(body)]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        # A name that is not allowed, of a topic that is unknown.
        (sending("a b", default_topic="nowhere"), ResponseCode.INVALID_PARAMETER),
        # A system topic, with a queue beyond its last.
        (sending("RMQ_SYS_TRANS_HALF_TOPIC", queue_id=99), ResponseCode.NO_PERMISSION),
        # An unknown topic, with a queue beyond the last that it would have.
        (sending("new", default_topic="nowhere", queue_id=99), ResponseCode.TOPIC_NOT_EXIST),
        (sending("orders", queue_id=99), ResponseCode.INVALID_PARAMETER),
    ],
    ids=["name", "system topic", "unknown topic", "queue"],
)
async def test_the_first_check_that_fails_gives_the_code(
    tmp_path: Path, header: SendHeader, code: ResponseCode
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, header, b"x")).code == code
        assert server.broker.topics.get("new") is None


async def test_sending_creates_an_unknown_topic_after_the_template_that_the_client_names(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for name, wanted, made in (("few", 3, 3), ("many", 100, 8)):
            header = sending(name, default_queue_count=wanted, queue_id=0)
            assert (await peer.ask(SEND, header, b"x")).code == ResponseCode.SUCCESS
            topic = server.broker.topics.named(name)
            assert (topic.write_queue_count, topic.read_queue_count, topic.perm) == (made, made, 6)
        unknown = await peer.ask(SEND, sending("other", default_topic="nowhere"), b"x")
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
    async with serving(tmp_path, topics={"auto_create": False}) as server:
        peer = await Peer.to(server.broker_address)
        refused = await peer.ask(SEND, sending("new"), b"x")
        assert refused.code == ResponseCode.TOPIC_NOT_EXIST
        assert (await peer.ask(SEND, sending("few"), b"x")).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("fields", [{"sys_flag": 4}, {"sys_flag": 8}, {"topic": "%RETRY%shop"}])
async def test_a_batch_holds_no_half_messages_and_no_retries(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    body = encode_batch([(0, b"a", b""), (0, b"b", b"")])
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        code = RequestCode.SEND_BATCH_MESSAGE
        answer = await peer.ask(code, sending(is_batch=True, **fields), body)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_a_topic_may_be_in_a_namespace(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, sending("shop%orders"), b"x")).code == ResponseCode.SUCCESS
        assert len(visible(server, "shop%orders")) == 1


async def test_the_type_of_a_topic_is_not_enforced_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, half("t"), b"x")).code == ResponseCode.SUCCESS
    async with serving(tmp_path, topics={"enforce_type": True}) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, half("t2"), b"x")).code == ResponseCode.NO_PERMISSION
        assert (await peer.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS


async def test_a_second_attempt_of_a_half_message_is_answered_as_the_first(tmp_path: Path) -> None:
    """A stock producer sends again after a timeout, and Apache's broker then keeps an orphan."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        first = facts(await peer.ask(SEND, half("t"), b"x"))
        assert facts(await peer.ask(SEND, half("t"), b"x")) == first
        assert server.broker.store.table.end == 1
