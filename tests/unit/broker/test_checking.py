"""Over a real socket: which producers get back-checks, and which checks count."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.checks import checking
from escrowmq.broker.net import taking
from escrowmq.broker.write import pace
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.remoting.send_headers import (
    CheckTransactionHeader,
)
from escrowmq.testing import message
from escrowmq.transaction.commands import Prepare
from tests.unit.broker.asking import (
    ASK,
    FLOOD,
    PATIENT,
    begin,
    check,
    connection_of,
    header_of,
    is_check,
    obey,
    producer,
    row,
    stall,
    verdict,
    was_asked,
)
from tests.unit.broker.wire import SEND, Peer, eventually, facts, half, make_topic, serving

# Which producer is asked.


async def test_the_sender_is_asked_with_what_it_sent(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        other, sender = await producer(server, "other"), await producer(server, "sender")
        sent = await sender.ask(SEND, half("t1", KEYS="k1", TAGS="paid"), b"paid")
        assert await obey(server, ASK) == "asked"
        header, asked = await check(sender)
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
        sender = await producer(server, "sender")
        await sender.ask(SEND, half("t1"), b"x")
        first, second = await producer(server, "first"), await producer(server, "second")
        await producer(server, "stranger", group="others")
        await sender.closed()
        await eventually(lambda: server.broker.checking.online("pay") == 2)
        for number, asked in enumerate((first, second, first)):
            assert await obey(server, ASK, checks_sent=number) == "asked"
            _, message = await check(asked)
            number_told = parse_properties(message.properties)["TRANSACTION_CHECK_TIMES"]
            assert number_told == str(number + 1)


async def test_groups_whose_names_have_one_hash_in_java_are_not_mixed_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        sender = await producer(server, "sender", group="Aa")
        await sender.ask(SEND, half("t1", PGROUP="Aa"), b"x")
        await sender.closed()
        stranger = await producer(server, "stranger", group="BB")
        await eventually(lambda: server.broker.checking.online("Aa") == 0)
        assert await obey(server, ASK) == "no_producer"
        member = await producer(server, "member", group="Aa")
        assert await obey(server, ASK) == "asked"
        await check(member)
        assert not await was_asked(stranger)


async def test_a_client_that_only_sent_is_not_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, half("t1"), b"x")
        member = await producer(server, "member")
        assert await obey(server, ASK) == "asked"
        await check(member)


async def test_a_transaction_of_many_messages_is_asked_about_by_its_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        # Longer than 127 bytes, the limit of the one-byte topic length in RocketMQ's checks.
        topic = "%RETRY%" + "g" * 200
        await make_topic(server, topic)
        await make_topic(server, "orders")
        messages = (message(b"first", topic=topic), message(b"second"))
        held = Prepare(group="pay", transaction_id="many", messages=messages, number=0)
        assert (await server.broker.writer.submit(held)).refused is None
        assert await obey(server, ASK, 1) == "asked"
        header, asked = await check(peer)
        assert (header.half_offset, header.transaction_id, header.unique_key) == (0, "many", "many")
        assert (asked.topic, asked.body) == (topic, b"first")
        assert parse_properties(asked.properties)["PGROUP"] == "pay"


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
        sender = await producer(server, "sender")
        await sender.ask(SEND, half("t1"), b"x")
        await sender.ask(SEND, half("t2"), b"x")
        connection_of(server, "sender").send(FLOOD)
        await eventually(lambda: not connection_of(server, "sender").has_room)
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


# Which checks count.


async def test_a_check_counts_once_the_socket_took_it(tmp_path: Path) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        sender = await producer(server, "sender")
        await sender.ask(SEND, half("t1"), b"x")
        connection_of(server, "sender").send(FLOOD)
        told = await stall(server)
        assert row(server).checks_sent == 0
        assert not told.done()
        await sender.read(len(FLOOD))
        await check(sender)
        assert (await told).value == "asked"
        assert row(server).checks_sent == 1


async def test_a_check_that_a_dying_connection_did_not_take_goes_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, broker=PATIENT) as server:
        sender = await producer(server, "sender")
        await sender.ask(SEND, half("t1"), b"x")
        other = await producer(server, "other")
        connection_of(server, "sender").send(FLOOD)
        told = await stall(server)
        await sender.closed()
        assert (await told).value == "asked"
        await check(other)
        assert row(server).checks_sent == 1


async def test_a_producer_that_does_not_read_for_too_long_is_passed_over_until_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "TAKEN_S_MAX", 0.02)
    async with serving(tmp_path, broker=PATIENT) as server:
        sender = await producer(server, "sender")
        await sender.ask(SEND, half("t1"), b"x")
        connection_of(server, "sender").send(FLOOD)
        assert await obey(server, ASK) == "busy"
        assert not connection_of(server, "sender").has_room
        assert row(server).checks_sent == 0
        await sender.read(len(FLOOD))
        await check(sender)
        assert await obey(server, ASK) == "asked"


async def test_a_check_that_was_taken_counts_even_if_the_writer_is_busy(tmp_path: Path) -> None:
    writer = {"inbox_max": 2, "messages_max": 1}
    async with serving(tmp_path, broker=PATIENT, writer=writer) as server:
        sender = await producer(server, "sender")
        for number in range(3):
            await sender.ask(SEND, half(f"t{number}"), b"x")
        connection_of(server, "sender").send(FLOOD)
        told = [await stall(server, number) for number in range(3)]
        await sender.read(len(FLOOD))
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


async def test_while_clients_send_only_some_are_asked_before_a_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "IN_USE_S", 60)
    monkeypatch.setattr(checking, "REST_BESIDE", 1e9)
    async with serving(tmp_path) as server:
        peer = await producer(server, "p")
        for number in range(10):
            await peer.ask(SEND, half(f"t{number}"), b"x")
        told = [begin(server, verdict(ASK, number)) for number in range(10)]
        asked = [(await check(peer))[0].half_offset for _ in range(checking.SLICE_BESIDE)]
        assert asked == list(range(checking.SLICE_BESIDE))
        assert not await was_asked(peer)
    outcomes = [(await one).value for one in told]
    assert outcomes == ["asked"] * len(asked) + ["busy"] * (10 - len(asked))
