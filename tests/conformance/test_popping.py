"""Pop consumers over remoting: what a client of RocketMQ 5 sees on a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.native.status import status
from escrowmq.broker.state.consumer_lag import lags
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.native.headers import TopicFilterHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting import pop_headers
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from tests.conformance.pop_talk import (
    CHANGE,
    INVISIBLE_MS,
    POP,
    Popped,
    ack,
    facts_time,
    pop,
    popping,
    send,
)
from tests.conformance.talk import beat, clock_of, put_group
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.wire import (
    Peer,
    eventually,
    facts,
    make_topic,
    serving,
    visible,
)


async def test_a_message_is_in_flight_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b")
        first, second = await pop(peer)
        assert [first.body, second.body] == ["a", "b"]
        assert await pop(peer) == []
        assert await ack(peer, second) == ResponseCode.SUCCESS
        clock_of(server).advance(ms=INVISIBLE_MS)
        (again,) = await pop(peer)
        assert (again.body, again.message.reconsume_times) == ("a", 1)
        # The first receipt is stale, and using it changes nothing.
        assert await ack(peer, first) == ResponseCode.NO_MESSAGE
        assert await ack(peer, again) == ResponseCode.SUCCESS
        # A client that missed the answer may ask again.
        assert await ack(peer, again) == ResponseCode.SUCCESS
        clock_of(server).advance(ms=10 * INVISIBLE_MS)
        assert await pop(peer) == []


async def test_an_acknowledgement_survives_a_restart_and_a_receipt_does_not(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b", "c")
        first, second, third = await pop(peer)
        assert await ack(peer, second) == ResponseCode.SUCCESS
    async with serving(tmp_path) as server:
        clock_of(server).advance(ms=1)
        peer = await Peer.to(server.broker_address)
        assert await ack(peer, first) == ResponseCode.NO_MESSAGE
        again = await pop(peer)
        assert [one.body for one in again] == ["a", "c"]
        # Attempts are counted from 1 again.
        assert [one.message.reconsume_times for one in again] == [0, 0]
        assert await ack(peer, third) == ResponseCode.NO_MESSAGE
        assert [await ack(peer, one) for one in again] == [ResponseCode.SUCCESS] * 2
        assert server.broker.meta.offsets["shop", "orders", 1] == 3


async def test_a_late_acknowledgement_counts_while_no_other_consumer_has_the_message(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        (one,) = await pop(peer, invisible_ms=1_000)
        clock_of(server).advance(ms=5_000)
        assert await ack(peer, one) == ResponseCode.SUCCESS
        assert await pop(peer) == []


async def test_forged_receipts_change_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b")
        (one, *_) = await pop(peer)
        for fields in (
            {"offset": 99},
            {"offset": -1},
            {"queue_id": 0},
            {"queue_id": 7},
            {"topic": "others"},
            {"receipt": one.receipt.replace(facts_time(one), "1")},
        ):
            assert await ack(peer, one, **fields) == ResponseCode.NO_MESSAGE, fields
        assert await ack(peer, one, receipt="1 2") == ResponseCode.INVALID_PARAMETER
        assert await ack(peer, one, receipt="a b c d e f g h") == ResponseCode.INVALID_PARAMETER
        assert await ack(peer, one, consumer_group="nobody") == ResponseCode.NO_MESSAGE
        change = pop_headers.ChangeInvisibleHeader(**one.header(offset=99), invisible_ms=1)
        assert (await peer.ask(CHANGE, change)).code == ResponseCode.NO_MESSAGE
        clock_of(server).advance(ms=INVISIBLE_MS)
        assert [again.body for again in await pop(peer)] == ["a", "b"]


async def test_a_consumer_sets_when_a_message_is_visible_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        (one,) = await pop(peer)
        header = pop_headers.ChangeInvisibleHeader(**one.header(), invisible_ms=10_000)
        answer = await peer.ask(CHANGE, header)
        assert answer.code == ResponseCode.SUCCESS
        told = facts(answer)
        assert told["invisibleTime"] == "10000"
        # The old receipt is stale, the new one is not.
        assert await ack(peer, one) == ResponseCode.NO_MESSAGE
        parts = one.receipt.split(" ")
        new = Popped(one.message, " ".join((parts[0], told["popTime"], *parts[2:])))
        clock.advance(ms=9_000)
        assert await pop(peer) == []
        clock.advance(ms=1_001)
        (again,) = await pop(peer)
        assert await ack(peer, new) == ResponseCode.NO_MESSAGE
        header = pop_headers.ChangeInvisibleHeader(**again.header(), invisible_ms=10_000)
        told = facts(await peer.ask(CHANGE, header))
        parts = again.receipt.split(" ")
        newest = Popped(again.message, " ".join((parts[0], told["popTime"], *parts[2:])))
        assert await ack(peer, newest) == ResponseCode.SUCCESS
        clock.advance(ms=10 * INVISIBLE_MS)
        assert await pop(peer) == []
        await send(peer, "b")
        (again,) = await pop(peer)
        too_long = {**again.header(), "invisible_ms": 8 * 24 * 3_600_000}
        refused = await peer.ask(CHANGE, pop_headers.ChangeInvisibleHeader(**too_long))
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_a_pop_waits_for_a_new_message_and_for_one_that_is_visible_again(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await beat(peer)
        await make_topic(server, "orders", 4)
        polls = server.broker.popping.polls
        waiting = asyncio.ensure_future(pop(peer, wait_ms=15_000))
        await eventually(lambda: polls.waiting)
        await send(other, "a")
        (one,) = await waiting
        again = asyncio.ensure_future(pop(peer, wait_ms=15_000))
        await eventually(lambda: polls.waiting)
        info = await other.ask(RequestCode.POLLING_INFO, popping())
        assert facts(info)["pollingNum"] == "1"
        clock_of(server).advance(ms=INVISIBLE_MS)
        (second,) = await again
        assert (second.body, second.message.reconsume_times) == ("a", 1)
        assert await ack(peer, one) == ResponseCode.NO_MESSAGE
        answer = await peer.ask(POP, popping(wait_ms=1))
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= facts(answer).keys()
        assert polls.waiting == 0


async def test_waiting_pops_end_with_their_connection_and_their_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await beat(peer)
        await make_topic(server, "orders", 4)
        polls = server.broker.popping.polls
        waiting = asyncio.ensure_future(peer.ask(POP, popping(wait_ms=15_000)))
        await eventually(lambda: polls.waiting == 1)
        lost = asyncio.ensure_future(other.ask(POP, popping(wait_ms=15_000)))
        await eventually(lambda: polls.waiting == 2)
        other.close()
        await eventually(lambda: polls.waiting == 1)
        with pytest.raises((ConnectionError, RuntimeError)):
            await lost
        broker = server.broker
        await broker.writer.submit(broker.topics.remove("orders", by="me"))
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
        assert polls.waiting == 0


async def test_a_pop_gets_the_tags_that_it_asks_for_and_skips_the_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", properties={"TAGS": "x"})
        await send(peer, "b", properties={"TAGS": "y"})
        await send(peer, "c", properties={"TAGS": "x"})
        found = await pop(peer, expression="y")
        assert [one.body for one in found] == ["b"]
        assert await ack(peer, found[0]) == ResponseCode.SUCCESS
        assert server.broker.meta.offsets["shop", "orders", 1] == 3
        # The filter leaves "d" out: the broker records it as done without an acknowledgement.
        await send(peer, "d", properties={"TAGS": "x"})
        assert await pop(peer, expression="y") == []
        clock_of(server).advance(ms=2_000)
        await eventually(lambda: server.broker.meta.offsets["shop", "orders", 1] == 4)
        bad = await peer.ask(POP, popping(expression_type="SQL92", expression="a > 1"))
        assert bad.code == ResponseCode.SYSTEM_ERROR
        assert "filter_unsupported" in bad.remark


async def test_bad_pops_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a")
        for fields, code in (
            ({"messages_max": 33}, ResponseCode.INVALID_PARAMETER),
            ({"messages_max": 0}, ResponseCode.INVALID_PARAMETER),
            ({"invisible_ms": -1}, ResponseCode.INVALID_PARAMETER),
            ({"topic": "nothing"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
            ({"topic": "%RETRY%shop"}, ResponseCode.NO_PERMISSION),
            ({"queue_id": 99}, ResponseCode.INVALID_PARAMETER),
        ):
            assert (await peer.ask(POP, popping(**fields))).code == code, fields
        assert len(await pop(peer, messages_max=1)) == 1
        await send(peer, *["b"] * 40)
        assert len(await pop(peer, messages_max=32)) == 32


async def test_messages_of_all_queues_come_in_one_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        for queue_id in (0, 1, 3):
            await send(peer, f"a{queue_id}", f"b{queue_id}", queue_id=queue_id)
        found = await pop(peer)
        assert sorted(one.body for one in found) == ["a0", "a1", "a3", "b0", "b1", "b3"]
        acks = tuple(
            pop_headers.BatchAck(
                group="shop",
                topic="orders",
                queue_id=queue_id,
                start_offset=0,
                popped_at_ms=int(facts_time(found[0])),
                bits=b"\x03",
            )
            for queue_id in (0, 1, 3)
        )
        body = encode_body(pop_headers.BatchAcks(acks=acks))
        answer = await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert answer.code == ResponseCode.SUCCESS
        clock_of(server).advance(ms=INVISIBLE_MS)
        assert await pop(peer) == []
        stale = msgspec.structs.replace(acks[0], start_offset=5)
        body = encode_body(pop_headers.BatchAcks(acks=(stale,)))
        answer = await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert answer.code == ResponseCode.NO_MESSAGE
        answer = await peer.ask(RequestCode.BATCH_ACK_MESSAGE, body=b"{}")
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_after_the_last_attempt_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        clock = clock_of(server)
        peer = await Peer.to(server.broker_address)
        await put_group(peer, retries_max=2)
        await send(peer, "bad", "good")
        for attempt in range(3):
            found = {one.body: one for one in await pop(peer)}
            assert found["bad"].message.reconsume_times == attempt
            if "good" in found:
                assert await ack(peer, found["good"]) == ResponseCode.SUCCESS
            clock.advance(ms=INVISIBLE_MS)
        assert await pop(peer) == []
        await eventually(lambda: visible(server, "%DLQ%shop", 0))
        (dead,) = visible(server, "%DLQ%shop", 0)
        assert (dead.body, dead.reconsume_times) == (b"bad", 3)
        assert parse_properties(dead.properties)["RETRY_TOPIC"] == "orders"
        assert server.broker.store.core.pops.groups["shop"]
        await eventually(lambda: server.broker.meta.offsets["shop", "orders", 1] == 2)
        clock.advance(ms=10 * INVISIBLE_MS)
        assert await pop(peer) == []


async def test_status_group_and_metrics_show_messages_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await beat(peer)
        await send(peer, "a", "b", "c", "d")
        (_, second, _) = await pop(peer, messages_max=3)
        assert await ack(peer, second) == ResponseCode.SUCCESS
        waiting = asyncio.ensure_future(pop(peer, queue_id=0, wait_ms=15_000))
        await eventually(lambda: server.broker.popping.polls.waiting)
        told = status(server.broker)
        assert (told.pops_waiting, told.pop_in_flight) == (1, 2)
        (lag,) = lags(server.broker)
        assert (lag.messages, lag.in_flight, lag.ready) == (3, 2, 1)
        other = await Peer.to(server.broker_address)
        (row,) = await all_rows(other, NativeCode.LIST_OFFSETS, TopicFilterHeader())
        assert (row.offset, row.end, row.lag, row.in_flight) == (0, 4, 3, 2)
        clock_of(server).advance(ms=INVISIBLE_MS)
        assert [one.body for one in await pop(other)] == ["a", "c", "d"]
        assert server.broker.popping.redelivered == {("shop", "orders"): 2}
        waiting.cancel()
