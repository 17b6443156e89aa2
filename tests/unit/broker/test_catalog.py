"""Over a real socket: deleted topics do not come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.broker.state import long_polls
from escrowmq.protocol.native.operator_headers import DeleteTopicHeader
from escrowmq.protocol.native.previews import FindMessagesHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.admin_headers import (
    TopicHeader,
)
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import (
    QueryOffsetHeader,
    QueueHeader,
    SendBackHeader,
    UpdateOffsetHeader,
)
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.store.checkpoint.checkpoint import load, save
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.inspect import check
from escrowmq.testing.clock import ManualClock
from escrowmq.transaction.states import State
from tests.unit.broker.native_peer import ask
from tests.unit.broker.test_delivering import (
    COMMITS,
    MAY_WAIT,
    PULL,
    SUBSCRIBES,
    bodies,
    pulling,
    send,
)
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    T0,
    Peer,
    ending,
    eventually,
    facts,
    half,
    make_topic,
    sending,
    serving,
    visible,
)

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
QUERY = RequestCode.QUERY_CONSUMER_OFFSET


async def delete(peer: Peer, topic: str = "orders") -> RemotingFrame:
    return await peer.ask(DELETE, TopicHeader(topic=topic))


async def force(peer: Peer, topic: str = "orders") -> tuple[int, int]:
    header = DeleteTopicHeader(topic=topic, by="admin", is_forced=True)
    told = (await ask(peer, NativeCode.DELETE_TOPIC, header)).header
    assert told.is_deleted
    return told.undecided, told.waiting


def texts(server: Server, topic: str = "orders", queue_id: int = 1) -> list[str]:
    return [one.body.decode() for one in visible(server, topic, queue_id)]


async def queried(peer: Peer, group: str = "shop", queue_id: int = 1) -> int | None:
    """Return the offset that the broker tells a client, or None if it has none."""
    header = QueryOffsetHeader(
        consumer_group=group, topic="orders", queue_id=queue_id, zero_if_none=False
    )
    answer = await peer.ask(QUERY, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    assert answer.code == ResponseCode.SUCCESS
    return int(facts(answer)["offset"])


async def commit_offset(peer: Peer, offset: int, group: str = "shop", queue_id: int = 1) -> None:
    """Commit this offset as a group."""
    await peer.ask(PULL, pulling(0, consumer_group=group, queue_id=queue_id))
    header = UpdateOffsetHeader(
        consumer_group=group, topic="orders", queue_id=queue_id, commit_offset=offset
    )
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


def rebuild(data: Path) -> None:
    """Make the next start rebuild all projections from the log."""
    disk = OsDisk(data / "store")
    checkpoint = load(disk, "checkpoint")
    assert checkpoint is not None
    save(disk, checkpoint.with_files(rebuild="a test"))


# Deleted topics.


@pytest.mark.parametrize("is_rebuilt", [False, True])
async def test_a_topic_that_is_made_again_has_none_of_its_old_messages(
    tmp_path: Path, *, is_rebuilt: bool
) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "old 1", "old 2", KEYS="k")
        delayed = sending(properties={"DELAY": "1"})
        assert (await peer.ask(SEND, delayed, b"old delay")).code == 0
        held = [await peer.ask(SEND, half(f"t{number}"), b"old half") for number in range(2)]
        old_id = facts(held[0])["msgId"]
        assert await force(peer) == (2, 1)
        await send(peer, "new 1")
        # The old half messages are committed now, and the old delay ends.
        for one in held:
            await peer.ask(END, ending(one, COMMIT))
        clock.advance(ms=60_000)
        await eventually(lambda: server.broker.store.dropped == 1)
        assert texts(server) == ["new 1"]
        assert (await ask(peer, NativeCode.FIND_MESSAGES, _by_key())).rows == []
        found = await ask(peer, NativeCode.FIND_MESSAGES, FindMessagesHeader(message_id=old_id))
        assert [row.queue_offset for row in found.rows] == [None]
        await send(peer, "new 2")
    if is_rebuilt:
        rebuild(tmp_path)
    for number in (3, 4):
        async with serving(tmp_path, clock) as server:
            peer = await Peer.to(server.broker_address)
            assert bool(server.broker.vitals.found.store.rebuilt_because) is (
                is_rebuilt and number == 3
            )
            await send(peer, f"new {number}")
            assert texts(server) == [f"new {one}" for one in range(1, number + 1)]
            assert server.broker.store.table.get(0) is not None
            # These two can only be rolled back.
            assert [server.broker.store.core.row(row).state for row in (1, 2)] == [State.PARKED] * 2
    assert check(OsDisk(tmp_path / "store", read_only=True)).findings == []
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(END, ending(held[0], ROLLBACK))).code == 0
        assert server.broker.store.core.row(1).state is State.ROLLED_BACK


def _by_key() -> FindMessagesHeader:
    return FindMessagesHeader(topic="orders", key="k")


async def test_deleting_and_making_a_topic_a_thousand_times_leaves_no_trace(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        store = server.broker.store

        async def rounds(count: int) -> tuple[int, ...]:
            for _ in range(count):
                await send(peer, "a")
                assert (await delete(peer)).code == 0
            for _ in range(3):
                await server.broker.writer.alone(lambda alone: alone.checkpoint())
            broker, core = server.broker, store.core
            return (
                len(store.queues),
                len(core.names.queues),
                len(core.names.deleted),
                len(core.queue_ends),
                len(core.catalog.topics),
                len(core.catalog.removed.saved()),
                len(store.garbage),
                len(broker.counts.topics),
                len(broker.counts._queues),
                len(broker.meta.offsets),
                len(list((tmp_path / "store/consumequeue").rglob("*"))),
            )

        first = await rounds(10)
        size = (tmp_path / "store/checkpoint").stat().st_size
        # Some rounds contain a checkpoint, so queue files are made and deleted too.
        assert await rounds(990) == first
        assert (tmp_path / "store/checkpoint").stat().st_size - size < 50
        assert core_numbers(server) == 1_000
    assert check(OsDisk(tmp_path / "store", read_only=True)).findings == []


def core_numbers(server: Server) -> int:
    return server.broker.store.core.names.queues_end


async def test_files_of_a_deleted_queue_go_with_the_next_checkpoints(tmp_path: Path) -> None:
    queues = tmp_path / "store/consumequeue"
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
    assert [path.name.partition(".")[0] for path in queues.iterdir()] == ["00000000"]
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        # Reading opens the queue's files.
        assert texts(server) == ["a"]
        assert (await delete(peer)).code == 0
        await send(peer, "new")
        for _ in range(3):
            await server.broker.writer.alone(lambda alone: alone.checkpoint())
        assert server.broker.store.garbage == {}
        assert [path.name.partition(".")[0] for path in queues.iterdir()] == ["00000001"]
        assert texts(server) == ["new"]


async def test_a_stock_tool_is_refused_while_something_is_undecided(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        held = await peer.ask(SEND, half("t"), b"held")
        answer = await delete(peer)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topic_undecided" in answer.remark
        assert "undecided=1" in answer.remark
        assert server.broker.catalog.topic("orders") is not None
        await peer.ask(END, ending(held, COMMIT))
        assert (await delete(peer)).code == ResponseCode.SUCCESS
        assert server.broker.catalog.topic("orders") is None
        # A second deletion is no error, as in RocketMQ.
        assert (await delete(peer)).code == ResponseCode.SUCCESS


async def test_retries_and_dead_letters_of_a_deleted_topic_do_not_come_back(tmp_path: Path) -> None:
    clock = ManualClock(T0)
    async with serving(tmp_path, clock) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a")
        await commit_offset(peer, 1)
        at = visible(server)[0].log_offset
        back = SendBackHeader(log_offset=at, consumer_group="shop", delay_level=3)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        dead = SendBackHeader(log_offset=at, consumer_group="shop", delay_level=-1)
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead)).code == 0
        for topic in ("%RETRY%shop", "%DLQ%shop"):
            assert (await delete(peer, topic)).code == 0
        clock.advance(ms=60_000)
        await eventually(lambda: server.broker.store.dropped == 1)
        # A new retry makes the topic again, without the deleted message.
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == 0
        clock.advance(ms=60_000)
        await eventually(lambda: texts(server, "%RETRY%shop", 0) == ["a"])
        assert texts(server, "%DLQ%shop", 0) == []


async def test_a_message_that_waits_for_the_writer_finds_its_topic_deleted(tmp_path: Path) -> None:
    """The writer takes decisions first, so the topic is deleted before the message is written."""
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await make_topic(server, "orders", 4)
        await send(peer, "a")
        sent = asyncio.ensure_future(peer.ask(SEND, sending(), b"b"))
        deleted = asyncio.ensure_future(delete(other))
        answers = await asyncio.gather(sent, deleted)
        assert answers[0].code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        # The message was stored before, or its sender made the topic again. No queue lacks a topic.
        names = server.broker.store.core.names
        assert names.queues_of.keys() <= server.broker.catalog.topics.keys()


# Consumers of deleted topics.


async def test_a_pull_that_waits_for_a_deleted_topic_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await send(peer, "a")
        await peer.ask(PULL, pulling(0))
        waiting = asyncio.ensure_future(peer.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT)))
        await eventually(lambda: server.broker.pulling.polls.waiting == 1)
        await delete(other)
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST
        assert server.broker.pulling.polls.waiting == 0


async def test_very_many_pulls_that_wait_for_a_deleted_topic_are_answered_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no time for more than one pull, the loop runs after each; all are answered."""
    monkeypatch.setattr(long_polls, "TRY_S", -1.0)
    async with serving(tmp_path) as server:
        peers = [await Peer.to(server.broker_address) for _ in range(3)]
        await send(peers[0], "a")
        await peers[0].ask(PULL, pulling(0))
        asked = [
            asyncio.ensure_future(peer.ask(PULL, pulling(1, sys_flag=SUBSCRIBES | MAY_WAIT)))
            for peer in peers
        ]
        pulls = server.broker.pulling
        await eventually(lambda: pulls.polls.waiting == len(peers))
        pulls.forget("orders")
        assert pulls.polls.waiting == len(peers) - 1
        answers = await asyncio.gather(*asked)
        assert {one.code for one in answers} == {ResponseCode.TOPIC_NOT_EXIST}
        assert pulls.polls.waiting == 0


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("sent", [1, 9])
async def test_consumers_of_a_deleted_topic_skip_nothing_of_the_new_one(
    tmp_path: Path, sent: int, *, is_restarted: bool
) -> None:
    """Running consumers hold an offset of the deleted topic; the new one is shorter or longer."""
    news = [f"new {number}" for number in range(sent)]
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await send(peer, "a", "b", "c")
        await peer.ask(PULL, pulling(0))
        end = await peer.ask(RequestCode.GET_MAX_OFFSET, QueueHeader(topic="orders", queue_id=1))
        assert facts(end)["offset"] == "3"
        await commit_offset(peer, 3)
        await delete(peer)
        assert await queried(peer) is None
        await send(peer, *news)
        if not is_restarted:
            await _follows(peer, news)
    if is_restarted:
        async with serving(tmp_path) as server:
            await _follows(await Peer.to(server.broker_address), news)


async def _follows(peer: Peer, news: list[str]) -> None:
    # The offset that it commits belongs to the deleted topic too.
    committing = pulling(3, sys_flag=SUBSCRIBES | COMMITS, commit_offset=3)
    moved = await peer.ask(PULL, committing)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert facts(moved)["nextBeginOffset"] == "0"
    assert await queried(peer) == 0
    answer = await peer.ask(PULL, pulling(0))
    assert bodies(answer) == news
    # From here on, its offset belongs to the new topic.
    last = await peer.ask(PULL, pulling(len(news)))
    assert last.code == ResponseCode.PULL_NOT_FOUND
    await commit_offset(peer, len(news))
    assert await queried(peer) == len(news)
