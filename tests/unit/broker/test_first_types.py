"""The type of a topic that a message creates, for each way in which messages come."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.model.catalog import MessageType
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.codes import ResponseCode
from tests.unit.broker.native_peer import ask, hold, sent
from tests.unit.broker.wire import SEND, Peer, half, sending, serving

FIRST = {
    MessageType.NORMAL: sending(),
    MessageType.FIFO: sending(properties={"__SHARDINGKEY": "k"}),
    MessageType.DELAY: sending(properties={"DELAY": "3"}),
    MessageType.TRANSACTION: half("u1"),
}


def type_of(server: Server, topic: str = "orders") -> MessageType:
    found = server.broker.catalog.topic(topic)
    assert found is not None
    return found.message_type


@pytest.mark.parametrize("kind", FIRST)
async def test_the_first_message_gives_the_type_if_types_are_enforced(
    tmp_path: Path, kind: MessageType
) -> None:
    async with serving(tmp_path, topics={"enforce_type": True}) as server:
        peer = await Peer.to(server.broker_address)
        assert (await peer.ask(SEND, FIRST[kind], b"x")).code == ResponseCode.SUCCESS
        assert type_of(server) is kind
        for other, header in FIRST.items():
            code = (await peer.ask(SEND, header, b"y")).code
            assert (code == ResponseCode.SUCCESS) is (other is kind), other


@pytest.mark.parametrize("kind", FIRST)
async def test_stock_clients_create_ordinary_topics_otherwise(
    tmp_path: Path, kind: MessageType
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for header in (FIRST[kind], *FIRST.values()):
            assert (await peer.ask(SEND, header, b"x")).code == ResponseCode.SUCCESS
        assert type_of(server) is MessageType.NORMAL


@pytest.mark.parametrize("enforced", [True, False])
async def test_a_first_half_of_the_sdk_makes_a_topic_for_transactions(
    tmp_path: Path, *, enforced: bool
) -> None:
    async with serving(tmp_path, topics={"enforce_type": enforced}) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t1", sent(b"1"))
        await ask(peer, NativeCode.SEND_MANY, rows=[sent(b"2", "plain")])
        assert type_of(server) is MessageType.TRANSACTION
        assert type_of(server, "plain") is MessageType.NORMAL


@pytest.mark.parametrize(
    ("enforced", "kind"), [(True, MessageType.TRANSACTION), (False, MessageType.NORMAL)]
)
async def test_a_spark_sink_makes_ordinary_topics_unless_types_are_enforced(
    tmp_path: Path, kind: MessageType, *, enforced: bool
) -> None:
    async with serving(tmp_path, topics={"enforce_type": enforced}) as server:
        peer = await Peer.to(server.broker_address)
        await hold(peer, "t1", sent(b"1"), is_bulk=True)
        assert type_of(server) is kind
