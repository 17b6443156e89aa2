"""The broker's answers when stock consumers pull, and when they ask for their start offset."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.state import group_offsets
from escrowmq.protocol.remoting.admin_headers import CreateTopicHeader, RouteHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import QueryOffsetHeader, QueueHeader
from tests.conformance.talk import COMMITS, MAY_WAIT, SUBSCRIBES, pulling
from tests.unit.broker.test_delivering import bodies
from tests.unit.broker.wire import SEND, Peer, eventually, facts, sending, serving
from tests.unit.protocol.batches import encode_batch

PULL = RequestCode.PULL_MESSAGE
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


async def test_a_queue_that_is_not_there_is_an_illegal_parameter(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        for queue_id in (-1, 4):
            answer = await peer.ask(PULL, pulling(queue_id=queue_id))
            assert answer.code == ResponseCode.INVALID_PARAMETER
            header = QueueHeader(topic="orders", queue_id=queue_id)
            answer = await peer.ask(RequestCode.GET_MAX_OFFSET, header)
            assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_an_offset_outside_the_queue_is_told_the_nearest_inside(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        for offset, nearest in ((-1, "0"), (9, "1")):
            answer = await peer.ask(PULL, pulling(offset))
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert facts(answer)["nextBeginOffset"] == nearest


async def test_a_pull_of_deleted_messages_is_sent_to_the_first_that_is_left(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for body in (b"a", b"b", b"c"):
            await peer.ask(SEND, sending(), body)
        queue = server.broker.reader.queue("orders", 1)
        assert queue is not None
        queue.forget_below(2)
        answer = await peer.ask(PULL, pulling(0))
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        told = facts(answer)
        assert (told["nextBeginOffset"], told["minOffset"]) == ("2", "2")
        assert bodies(await peer.ask(PULL, pulling(2))) == ["c"]


async def test_a_topic_may_be_closed_to_readers(tmp_path: Path) -> None:
    write_only = CreateTopicHeader(
        topic="orders",
        default_topic="TBW102",
        read_queue_count=4,
        write_queue_count=4,
        permissions=2,
        filter_type="SINGLE_TAG",
    )
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, write_only)
        assert (await peer.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS
        assert (await peer.ask(PULL, pulling())).code == ResponseCode.NO_PERMISSION


async def test_a_consumer_that_shares_out_its_queues_itself_pulls_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        lite = pulling(sys_flag=SUBSCRIBES | 0x10)
        assert bodies(await peer.ask(RequestCode.LITE_PULL_MESSAGE, lite)) == ["x"]


async def test_a_pull_takes_the_groups_offset_along(tmp_path: Path) -> None:
    key = ("shop", "orders", 1)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for _ in range(3):
            await peer.ask(SEND, sending(), b"x")
        for flags, said, kept in (
            (SUBSCRIBES, 1, None),
            (SUBSCRIBES | COMMITS, 2, 2),
            # Pulls may overtake each other, so a lower offset must not win.
            (SUBSCRIBES | COMMITS, 1, 2),
        ):
            await peer.ask(PULL, pulling(sys_flag=flags, commit_offset=said))
            assert server.broker.meta.offsets.get(key) == kept


async def test_a_new_group_begins_where_the_queue_does_unless_that_is_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = RequestCode.QUERY_CONSUMER_OFFSET
    header = QueryOffsetHeader(consumer_group="shop", topic="orders", queue_id=1)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await peer.ask(SEND, sending(), b"x")
        assert facts(await peer.ask(query, header))["offset"] == "0"
        monkeypatch.setattr(group_offsets, "RECENT_BYTES", 0)
        assert (await peer.ask(query, header)).code == ResponseCode.QUERY_NOT_FOUND
        await peer.ask(PULL, pulling(sys_flag=SUBSCRIBES | COMMITS, commit_offset=1))
        assert facts(await peer.ask(query, header))["offset"] == "1"


async def test_a_waiting_pull_is_answered_when_a_message_comes(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        waiting, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await other.ask(SEND, sending(), b"old")
        pull = asyncio.ensure_future(
            waiting.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT, wait_ms=15_000))
        )
        await eventually(lambda: server.broker.pulling.polls.waiting)
        await other.ask(SEND, sending(), b"new")
        assert bodies(await pull) == ["new"]


@pytest.mark.parametrize(("asked", "found"), [(40, 40), (1_024, 1_024), (2_000, 1_024)])
async def test_a_pull_brings_as_many_messages_as_were_asked_for_up_to_1024(
    tmp_path: Path, asked: int, found: int
) -> None:
    """RocketMQ brings 32 from memory, and 8 from disk."""
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        body = encode_batch([(0, b"", b"")] * 1_100)
        code = RequestCode.SEND_BATCH_MESSAGE
        assert (await peer.ask(code, sending(is_batch=True), body)).code == ResponseCode.SUCCESS
        answer = await peer.ask(PULL, pulling(messages_max=asked))
        assert len(bodies(answer)) == found


async def test_a_pull_brings_up_to_256_kib_wherever_they_are_read_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for _ in range(6):
            await peer.ask(SEND, sending(), bytes(60_000))
        assert len(bodies(await peer.ask(PULL, pulling()))) == 4
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(PULL, pulling())
        assert len(bodies(answer)) == 4
        assert 4 * 60_000 < len(answer.body) <= 256 * 1_024


async def test_the_half_topic_has_one_queue_and_is_empty_at_first(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        header = pulling(topic=HALF_TOPIC, queue_id=0)
        assert (await peer.ask(PULL, header)).code == ResponseCode.PULL_NOT_FOUND
        route = RouteHeader(topic=HALF_TOPIC)
        told = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        (queues,) = msgspec.json.decode(told.body)["queueDatas"]
        assert (queues["readQueueNums"], queues["writeQueueNums"]) == (1, 1)


async def test_unknown_topics_are_made_like_the_one_that_lends_its_settings(
    tmp_path: Path,
) -> None:
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.name_address)
        unknown = await peer.ask(code, RouteHeader(topic="orders"))
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        template = msgspec.json.decode((await peer.ask(code, RouteHeader(topic="TBW102"))).body)
        assert (template["queueDatas"][0]["writeQueueNums"], template["queueDatas"][0]["perm"]) == (
            8,
            7,
        )
