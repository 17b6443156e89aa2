"""The op topic over a real socket: which half messages each decision covers."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.state import system_queues
from escrowmq.protocol.message.message_views import OP_TOPIC
from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import decode_many
from escrowmq.protocol.remoting.admin_headers import TopicHeader
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.transaction.commands import Prepare, Verdicts
from tests.unit.broker.test_delivering import PULL
from tests.unit.broker.viewing import (
    asking,
    at_time,
    bodies,
    do,
    end,
    hold,
    later,
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
    sending,
    serving,
)
from tests.unit.store.helpers import message


async def test_decisions_stand_in_the_op_topic_as_rocketmq_writes_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        nothing = await peer.ask(PULL, asking(OP_TOPIC, 0))
        assert nothing.code == ResponseCode.PULL_NOT_FOUND
        held = await hold(peer, "a", "b", "c")
        later(server, 1_000)
        await peer.ask(END, ending(held[1], ROLLBACK))
        later(server, 1_000)
        await peer.ask(END, ending(held[0], COMMIT))
        # One decision covers all messages of a transaction.
        messages = tuple(message(f"m{n}", unique_key=f"m{n}") for n in range(3))
        await do(server, Prepare(group="pay", transaction_id="many", messages=messages))
        await do(server, end(3))
        found = await seen(peer, OP_TOPIC)
        assert bodies(found) == ["1,", "0,", "3,4,5,"]
        assert {(one.topic, one.queue_id, one.sys_flag) for one in found} == {(OP_TOPIC, 0, 0)}
        assert parse_properties(found[0].properties) == {"TAGS": "d"}
        assert [one.stored_at_ms for one in found[:2]] == [T0 + 1_000, T0 + 2_000]
        assert found[0].store_host == server.broker.identity.store_host
        assert await seen(peer, OP_TOPIC, messages_max=1) == found
        assert await seen(peer, OP_TOPIC, bytes_max=1) == found
        assert await seen(peer, OP_TOPIC, subscription="d") == found
        assert await seen(peer, OP_TOPIC, subscription="other") == []
        start = await at_time(peer, OP_TOPIC, T0 + 1_500)
        assert found[0].queue_offset < start <= found[1].queue_offset
        # A consumer continues at the offset after the last message that it handled.
        after = await peer.ask(PULL, asking(OP_TOPIC, found[0].queue_offset + 1))
        assert decode_many(after.body) == found[1:]
        stats = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic=OP_TOPIC))
        assert str(T0 + 2_000).encode() in stats.body


async def test_decisions_that_share_a_frame_share_op_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_queues, "OP_ROWS", 2)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "a", "b", "c", "d", "e")
        said = [True, False, True, True, False]
        zeros = [0] * len(said)
        await do(
            server,
            Verdicts(half_offsets=range(5), commits=said, states=zeros, checks_sent=zeros),
        )
        found = await seen(peer, OP_TOPIC)
        assert bodies(found) == ["0,2,", "3,1,", "4,"]
        assert await seen(peer, OP_TOPIC, messages_max=1) == found


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_op_offsets_are_the_same_after_a_restart(tmp_path: Path, durability: str) -> None:
    found: list[list[tuple[int, bytes]]] = []
    for _ in range(2):
        async with serving(tmp_path, store={"durability": durability}) as server:
            peer = await Peer.to(server.broker_address)
            if not found:
                for held in await hold(peer, "a", "b"):
                    await peer.ask(END, ending(held, COMMIT))
            found.append([(one.queue_offset, one.body) for one in await seen(peer, OP_TOPIC)])
    assert found[0] == found[1]
    assert len(found[0]) == 2


async def test_a_decision_about_very_many_is_told_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_queues, "OP_ROWS", 4)
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        messages = tuple(message(f"m{n}", unique_key=f"m{n}") for n in range(10))
        await do(server, Prepare(group="pay", transaction_id="many", messages=messages))
        await do(server, end(0))
        (held,) = await hold(peer, "one")
        await peer.ask(END, ending(held, COMMIT))
        expected = ["0,1,2,3,", "4,5,6,7,", "8,9,", "10,"]
        found = await seen(peer, OP_TOPIC)
        assert bodies(found) == expected
        assert await seen(peer, OP_TOPIC, messages_max=1) == found
        # The offset after the last piece leads to the next decision.
        after = await peer.ask(PULL, asking(OP_TOPIC, found[2].queue_offset + 1))
        assert bodies(decode_many(after.body)) == ["10,"]


async def test_a_pull_reads_a_bounded_piece_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for _ in range(20):
            await peer.ask(SEND, sending(), b"x" * 1_000)
        (held,) = await hold(peer, "a")
        await peer.ask(END, ending(held, COMMIT))
        frames = server.broker.queues.views[OP_TOPIC]._scan.frames  # type: ignore[attr-defined]
        monkeypatch.setattr(
            server.broker.queues.views[OP_TOPIC]._scan,  # type: ignore[attr-defined]
            "frames",
            lambda offset: frames(offset, 4_096),
        )
        first = await peer.ask(PULL, asking(OP_TOPIC, 0))
        assert first.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert bodies(await seen(peer, OP_TOPIC)) == ["0,"]
