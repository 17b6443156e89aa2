"""Helpers for tests of the system topics: requests of a tool, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.broker.server import Server
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import StoredMessage, decode_many
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import PullHeader, QueueHeader, SearchOffsetHeader
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.transaction.commands import Append, Command, End, Prepare
from tests.unit.broker.test_delivering import PULL, SUBSCRIBES
from tests.unit.broker.wire import (
    SEND,
    Peer,
    clock_of,
    facts,
    half,
    make_topic,
)


def asking(topic: str, offset: int, **fields: Any) -> PullHeader:  # noqa: ANN401 - fields of the header
    values: dict[str, Any] = {
        "consumer_group": "tool",
        "topic": topic,
        "queue_id": 0,
        "queue_offset": offset,
        "messages_max": 32,
        "sys_flag": SUBSCRIBES,
        "commit_offset": 0,
        "wait_ms": 0,
        "subscription": "*",
        "subscription_version": 0,
        **fields,
    }
    return PullHeader(**values)


async def seen(peer: Peer, topic: str, **fields: Any) -> list[StoredMessage]:  # noqa: ANN401
    """Return all messages that a pull consumer gets from the first offset on."""
    offset = await lowest(peer, topic)
    found: list[StoredMessage] = []
    for _ in range(1_000):
        answer = await peer.ask(PULL, asking(topic, offset, **fields))
        if answer.code == ResponseCode.PULL_NOT_FOUND:
            return found
        found += decode_many(answer.body)
        assert int(facts(answer)["nextBeginOffset"]) > offset
        offset = int(facts(answer)["nextBeginOffset"])
    raise AssertionError("it does not end")


async def lowest(peer: Peer, topic: str) -> int:
    return await asked(peer, RequestCode.GET_MIN_OFFSET, QueueHeader(topic=topic, queue_id=0))


async def highest(peer: Peer, topic: str) -> int:
    return await asked(peer, RequestCode.GET_MAX_OFFSET, QueueHeader(topic=topic, queue_id=0))


async def at_time(peer: Peer, topic: str, at_ms: int) -> int:
    header = SearchOffsetHeader(topic=topic, queue_id=0, stored_at_ms=at_ms)
    return await asked(peer, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)


async def asked(peer: Peer, code: int, header: QueueHeader | SearchOffsetHeader) -> int:
    answer = await peer.ask(code, header)
    assert answer.code == ResponseCode.SUCCESS
    return int(facts(answer)["offset"])


async def hold(peer: Peer, *keys: str) -> list[RemotingFrame]:
    return [await peer.ask(SEND, half(key, TAGS=f"tag-{key}"), key.encode()) for key in keys]


async def do(server: Server, command: Command) -> None:
    """Submit a command after making the topics of its messages, as a request would."""
    for one in command.messages if isinstance(command, Prepare | Append) else ():
        await make_topic(server, one.topic, 8)
    decision = await server.broker.writer.submit(command)
    assert decision.refused is None


def end(row: int) -> End:
    return End(half_offset=row, resolution=Resolution.COMMIT, by="me")


def later(server: Server, ms: int) -> None:
    clock_of(server).advance(ms=ms)


def bodies(messages: Sequence[StoredMessage]) -> list[str]:
    return [one.body.decode() for one in messages]
