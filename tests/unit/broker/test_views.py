"""System topics over a real socket: what tools and pull consumers see of transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from escrowmq.broker.state import system_queues
from escrowmq.protocol.message.message_views import HALF_TOPIC, OP_TOPIC, PARKED_TOPIC
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.admin_headers import TopicHeader, ViewMessageHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import QueueHeader
from escrowmq.transaction.commands import (
    AttemptClaim,
    CheckSent,
    DecideBatch,
    Park,
    Prepare,
    Resume,
)
from tests.unit.broker.test_delivering import COMMITS, MAY_WAIT, PULL, SUBSCRIBES
from tests.unit.broker.viewing import (
    asking,
    at_time,
    bodies,
    do,
    end,
    highest,
    hold,
    later,
    lowest,
    seen,
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
    sending,
    serving,
    visible,
)
from tests.unit.store.helpers import message

# The half topic


async def test_half_messages_stand_in_the_half_topic_whatever_became_of_them(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        held = await hold(peer, "a", "b", "c")
        await peer.ask(END, ending(held[0], COMMIT))
        await peer.ask(END, ending(held[1], ROLLBACK))
        found = await seen(peer, HALF_TOPIC)
        assert bodies(found) == ["a", "b", "c"]
        assert [one.queue_offset for one in found] == [0, 1, 2]
        assert {(one.topic, one.queue_id, one.sys_flag) for one in found} == {(HALF_TOPIC, 0, 0)}
        properties = parse_properties(found[0].properties)
        assert properties["REAL_TOPIC"] == "orders"
        assert properties["REAL_QID"] == "1"
        assert properties["__transactionId__"] == "a"
        assert "TRANSACTION_CHECK_TIMES" not in properties
        # The producer's message id leads to the same message.
        view = ViewMessageHeader(log_offset=found[2].log_offset)
        answer = await peer.ask(RequestCode.VIEW_MESSAGE_BY_ID, view)
        assert decode_many(answer.body) == found[2:]
        assert [one.body for one in visible(server)] == [b"a"]


async def test_messages_that_are_no_half_messages_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_queues, "LOOKED_AT_MAX", 2)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a")
        for _ in range(5):
            await peer.ask(SEND, sending(properties={"DELAY": "9"}), b"scheduled")
        await hold(peer, "b")
        first = await peer.ask(PULL, asking(HALF_TOPIC, 1))
        assert first.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert facts(first)["nextBeginOffset"] == "3"
        assert bodies(await seen(peer, HALF_TOPIC)) == ["a", "b"]
        assert (await lowest(peer, HALF_TOPIC), await highest(peer, HALF_TOPIC)) == (0, 7)


async def test_the_half_topic_is_filtered_counted_and_found_by_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for key in ("a", "b", "c"):
            await hold(peer, key)
            later(server, 1_000)
        assert bodies(await seen(peer, HALF_TOPIC, subscription="tag-b || tag-c")) == ["b", "c"]
        assert bodies(await seen(peer, HALF_TOPIC, messages_max=1)) == ["a", "b", "c"]
        assert bodies(await seen(peer, HALF_TOPIC, bytes_max=1)) == ["a", "b", "c"]
        for number in range(3):
            assert await at_time(peer, HALF_TOPIC, T0 + number * 1_000) == number
        assert await at_time(peer, HALF_TOPIC, T0 + 10**6) == 3
        behind = await peer.ask(PULL, asking(HALF_TOPIC, 99))
        assert behind.code == ResponseCode.PULL_OFFSET_MOVED
        assert facts(behind)["nextBeginOffset"] == "3"
        stats = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=HALF_TOPIC))
        assert b'"maxOffset":3' in stats.body
        assert str(T0 + 2_000).encode() in stats.body
        earliest = await peer.ask(
            RequestCode.GET_EARLIEST_MSG_STORETIME, QueueHeader(topic=HALF_TOPIC, queue_id=0)
        )
        assert facts(earliest)["timestamp"] == str(T0)


async def test_checks_are_counted_in_the_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a")
        for _ in range(2):
            await do(server, CheckSent(half_offset=0, client="c"))
        (found,) = await seen(peer, HALF_TOPIC)
        assert parse_properties(found.properties)["TRANSACTION_CHECK_TIMES"] == "2"


async def test_half_messages_that_outlived_their_log_are_still_there(tmp_path: Path) -> None:
    small = {"segment_bytes_max": 4_096, "chunk_rows": 8, "id_window_ms": 0}
    async with serving(tmp_path, store=small) as server:
        peer = await Peer.to(server.broker_address)
        for number in range(40):
            (held,) = await hold(peer, f"t{number}")
            if number not in (3, 12):
                await peer.ask(END, ending(held, ROLLBACK))
            later(server, 60_000)
        later(server, 72 * 3_600_000 - 600_000)
        await server.broker.writer.alone(lambda store: store.checkpoint())
        await hold(peer, "young")
        await server._retain()
        assert server.broker.store.log.start > 0
        await outlived(peer)
    # The table is rebuilt from the rest of the log and starts after these rows.
    (tmp_path / "store" / "checkpoint").write_bytes(b"damaged")
    async with serving(tmp_path, store=small) as server:
        assert server.broker.store.table.start > 12
        peer = await Peer.to(server.broker_address)
        assert await lowest(peer, HALF_TOPIC) == 3
        await outlived(peer)


async def outlived(peer: Peer) -> None:
    found = await seen(peer, HALF_TOPIC)
    offsets = [one.queue_offset for one in found]
    assert offsets == sorted(offsets)
    assert (
        dict(zip(offsets, bodies(found), strict=True)).items()
        >= {
            3: "t3",
            12: "t12",
            40: "young",
        }.items()
    )
    assert await at_time(peer, HALF_TOPIC, T0 + 10**12) == 41


# The topic of parked transactions


async def test_parked_transactions_stand_in_their_topic_each_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        assert await seen(peer, PARKED_TOPIC) == []
        (_, held) = await hold(peer, "a", "b")
        await do(server, CheckSent(half_offset=1, client="c"))
        later(server, 5_000)
        await do(server, Park(half_offset=1, reason="exhausted"))
        (found,) = await seen(peer, PARKED_TOPIC)
        assert (found.topic, found.queue_id, found.queue_offset) == (PARKED_TOPIC, 0, 0)
        assert (found.body, found.stored_at_ms) == (b"b", T0 + 5_000)
        # An operator resumes it by this message id.
        assert found.log_offset == int(facts(held)["msgId"][16:], 16)
        properties = parse_properties(found.properties)
        assert (properties["REAL_TOPIC"], properties["TRANSACTION_CHECK_TIMES"]) == ("orders", "1")
        assert visible(server) == []
        later(server, 5_000)
        await do(server, Resume(half_offset=1, by="me"))
        await do(server, Park(half_offset=1, reason="exhausted"))
        assert [one.queue_offset for one in await seen(peer, PARKED_TOPIC)] == [0, 1]
        await peer.ask(END, ending(held, COMMIT))
        assert bodies(await seen(peer, PARKED_TOPIC)) == ["b", "b"]
        assert [await at_time(peer, PARKED_TOPIC, T0 + ms) for ms in (0, 5_001, 10_001)] == [
            0,
            1,
            2,
        ]
        assert (await lowest(peer, PARKED_TOPIC), await highest(peer, PARKED_TOPIC)) == (0, 2)


@pytest.mark.parametrize("is_decided", [False, True])
async def test_all_messages_of_a_parked_transaction_are_there(
    tmp_path: Path, *, is_decided: bool
) -> None:
    for attempt in range(2):
        async with serving(tmp_path) as server:
            peer = await Peer.to(server.broker_address)
            if not attempt:
                for number, names in enumerate((("a", "b"), ("c",))):
                    messages = tuple(message(name, unique_key=name) for name in names)
                    await do(
                        server,
                        Prepare(group="pay", transaction_id="t", messages=messages, number=number),
                    )
                await do(server, Park(half_offset=0, reason="why"))
                if is_decided:
                    await do(server, end(0))
            assert bodies(await seen(peer, PARKED_TOPIC)) == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["parking", "half", "decision"])
async def test_messages_lost_with_damaged_bytes_are_passed_over(tmp_path: Path, what: str) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        store = server.broker.store
        places = {}
        for name in ("a", "b"):
            (held,) = await hold(peer, name)
            row = int(facts(held)["queueOffset"])
            places["half"] = int(facts(held)["msgId"][16:], 16)
            places["parking"] = store.log.end
            await do(server, Park(half_offset=row, reason="why"))
            places["decision"] = store.log.end
            await do(server, end(row))
        store.lost.add(places[what], places[what] + 1)
        there = ["a", "b"] if what == "decision" else ["a"]
        assert bodies(await seen(peer, PARKED_TOPIC)) == there
        assert bodies(await seen(peer, HALF_TOPIC)) == (["a"] if what == "half" else ["a", "b"])
        # A search stops before a parking whose time is unknown.
        assert await at_time(peer, PARKED_TOPIC, 2 * T0) == (1 if what == "parking" else 2)


async def test_a_parked_transaction_that_a_batch_decided_shows_its_first_request(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        messages = (message("a", unique_key="a"),)
        await do(server, Prepare(group="spark", transaction_id="t", messages=messages, number=0))
        await do(server, Park(half_offset=0, reason="why"))
        await do(server, Resume(half_offset=0, by="me"))
        claim = AttemptClaim(transaction_id="t", last_number=0, rows=1)
        batch = DecideBatch(app_id="a", query_id="q", batch_id=1, attempts=(claim,), by="spark")
        await do(server, batch)
        assert bodies(await seen(peer, PARKED_TOPIC)) == ["a"]
        assert bodies(await seen(peer, OP_TOPIC)) == ["0,"]


# Waiting


@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_TOPIC, PARKED_TOPIC])
async def test_a_pull_from_a_view_waits_until_there_is_something(
    tmp_path: Path, topic: str
) -> None:
    async with serving(tmp_path) as server:
        peer, other = [await Peer.to(server.broker_address) for _ in range(2)]
        await hold(other, "a")
        header = asking(
            topic, await highest(peer, topic), sys_flag=SUBSCRIBES | MAY_WAIT, wait_ms=20_000
        )
        waiting = asyncio.ensure_future(peer.ask(PULL, header))
        await eventually(lambda: server.broker.pulling.polls.waiting == 1)
        # No view shows an ordinary message, so the pull keeps waiting.
        await other.ask(SEND, sending(), b"ordinary")
        (held,) = await hold(other, "b")
        await do(server, Park(half_offset=0, reason="why"))
        await other.ask(END, ending(held, COMMIT))
        answer = await waiting
        assert answer.code == ResponseCode.SUCCESS
        (found,) = decode_many(answer.body)
        assert found.topic == topic
        assert found.body == {HALF_TOPIC: b"b", OP_TOPIC: b"1,", PARKED_TOPIC: b"a"}[topic]


async def test_progress_in_a_view_survives_a_restart(tmp_path: Path) -> None:
    offset = 0
    for attempt in range(2):
        async with serving(tmp_path) as server:
            peer = await Peer.to(server.broker_address)
            key = ("tool", OP_TOPIC, 0)
            if not attempt:
                (held,) = await hold(peer, "a")
                await peer.ask(END, ending(held, COMMIT))
                offset = await highest(peer, OP_TOPIC)
                header = asking(OP_TOPIC, offset, sys_flag=SUBSCRIBES | COMMITS)
                await peer.ask(PULL, msgspec.structs.replace(header, commit_offset=offset))
            assert server.broker.meta.offsets[key] == offset


async def test_views_have_one_queue(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        answer = await peer.ask(PULL, asking(OP_TOPIC, 0, queue_id=1))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert server.broker.queues.get(OP_TOPIC, 1) is None
