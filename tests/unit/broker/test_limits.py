"""Limits on what one connection costs the others: turns, budgets, and which one is cut."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.net.limits import LINES_MAX, ConnectionLimits
from escrowmq.broker.server import Server
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import PullHeader
from escrowmq.protocol.remoting.frames import FrameSplitter, encode_request
from tests.unit.broker.test_server import heartbeat
from tests.unit.broker.wire import LOOPBACK, SEND, Peer, eventually, sending, serving

UNKNOWN_CODE = 9_999
GARBAGE = b"GET / HTTP/1.1\r\n\r\n"
KIB = 1024


def pulling(offset: int = 0, **fields: Any) -> PullHeader:  # noqa: ANN401 - fields of the header
    values: dict[str, Any] = {
        "consumer_group": "shop",
        "topic": "orders",
        "queue_id": 1,
        "queue_offset": offset,
        "messages_max": 32,
        "sys_flag": 6,
        "commit_offset": 0,
        "wait_ms": 15_000,
        "subscription": "*",
        "subscription_version": 0,
        **fields,
    }
    return PullHeader(**values)


def begun_frame(size: int, sent: int) -> bytes:
    """Return the first bytes of a frame of this size."""
    return size.to_bytes(4) + bytes(sent)


# Turns


async def test_ten_thousand_requests_at_once_are_answered_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        count = 10_000
        peer.write(b"".join(encode_request(UNKNOWN_CODE, number) for number in range(count)))
        for number in range(count):
            assert (await peer.until(lambda frame: frame.is_response)).opaque == number


async def test_others_are_answered_while_one_has_ten_thousand_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        greedy, modest = [await Peer.to(server.broker_address) for _ in range(2)]
        await modest.ask(UNKNOWN_CODE)
        handled = 0
        handle = server.handle

        def count_and_handle(connection: ClientConnection, frame: Any) -> None:  # noqa: ANN401
            nonlocal handled
            handled += 1
            handle(connection, frame)

        server.handle = count_and_handle  # type: ignore[method-assign] # only counts
        count = 10_000
        greedy.write(b"".join(encode_request(UNKNOWN_CODE, number) for number in range(count)))
        modest.write(encode_request(UNKNOWN_CODE, 1))
        await eventually(lambda: handled)
        await modest.until(lambda frame: frame.is_response)
        assert handled < count
        await greedy.until(lambda frame: frame.opaque == count - 1)
        assert handled == count + 1


async def test_a_client_with_one_request_at_a_time_is_never_behind(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peers = [await Peer.to(server.broker_address) for _ in range(21)]
        *greedy, modest = peers
        for peer in peers:
            await peer.ask(UNKNOWN_CODE)
        (own,) = [one for one in server._connections if one.address == modest.address]
        count = 2_000
        flood = b"".join(encode_request(UNKNOWN_CODE, number) for number in range(count))
        for peer in greedy:
            peer.write(flood)
        await eventually(lambda: server.limits.turns.is_any_behind)
        asked = 0
        while server.limits.turns.is_any_behind:
            modest.write(encode_request(UNKNOWN_CODE, 1))
            await modest.until(lambda frame: frame.is_response)
            assert own._frames is None
            asked += 1
        assert asked > 10


async def test_no_more_is_handled_than_may_wait_for_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"unanswered_max": 4}) as server:
        peer = await Peer.to(server.broker_address)
        most = 0
        put = server.broker.writer.put

        def watch(*arguments: Any) -> None:  # noqa: ANN401 - the arguments of put
            nonlocal most
            put(*arguments)
            (connection,) = server._connections
            most = max(most, connection._unanswered + 1)

        server.broker.writer.put = watch  # type: ignore[assignment, method-assign] # only watches
        for number in range(1, 51):
            peer.write(encode_request(SEND, number, header=sending(), body=b"x"))
        for number in range(1, 51):
            answer = await peer.until(lambda frame: frame.is_response)
            assert (answer.opaque, answer.code) == (number, ResponseCode.SUCCESS)
        assert most == 4


# Frames that do not end


async def test_a_frame_that_does_not_end_is_cut(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"stalled_ms_max": 100}) as server:
        slow, good = [await Peer.to(server.broker_address) for _ in range(2)]
        slow.write(begun_frame(1_000, 10))
        assert await slow.is_cut()
        assert server.limits.counts["frame_late"] == 1
        assert server.limits.waiting.bytes == 0
        assert (await good.ask(SEND, sending(), b"x")).code == ResponseCode.SUCCESS


async def test_a_frame_that_comes_byte_by_byte_is_handled(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        for byte in encode_request(UNKNOWN_CODE, 7):
            peer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await peer.until(lambda frame: frame.is_response)).opaque == 7
        assert server.limits.waiting.bytes == 0


async def test_when_too_much_waits_those_go_that_hold_most_for_longest(tmp_path: Path) -> None:
    limits = {"waiting_bytes_max": 200 * KIB}
    async with serving(tmp_path, broker=limits) as server:
        old, small, young = [await Peer.to(server.broker_address) for _ in range(3)]
        waiting = server.limits.waiting
        small.write(begun_frame(999 * KIB, 1 * KIB))
        old.write(begun_frame(999 * KIB, 90 * KIB))
        await eventually(lambda: waiting.bytes == 8 + 91 * KIB)
        await asyncio.sleep(0.05)  # Makes the first frame older.
        young.write(begun_frame(999 * KIB, 120 * KIB))
        assert await old.is_cut()
        await eventually(lambda: waiting.bytes == 8 + 121 * KIB)
        assert server.limits.counts == {"waiting_bytes_cut": 1}


# Unread answers


async def asked_and_not_read(server: Server, pulls: int) -> Peer:
    """Connect a peer that pulls and does not read."""
    peer = await Peer.to(server.broker_address)
    for number in range(pulls):
        peer.write(encode_request(RequestCode.PULL_MESSAGE, number, header=pulling(sys_flag=4)))
    return peer


async def fill(server: Server, count: int) -> None:
    """Send messages of 200 KiB."""
    peer = await Peer.to(server.broker_address)
    for _ in range(count):
        assert (await peer.ask(SEND, sending(), bytes(200 * KIB))).code == ResponseCode.SUCCESS


async def test_a_peer_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    async with serving(tmp_path, broker={"slow_bytes": 100 * KIB}) as server:
        await fill(server, 1)
        peer = await asked_and_not_read(server, 200)
        unread = server.limits.unread
        await eventually(lambda: unread.bytes > 100 * KIB)
        held = unread.bytes
        assert held < 200 * 200 * KIB / 2
        for number in range(200):
            assert (await peer.until(lambda frame: frame.is_response)).opaque == number
        await eventually(lambda: unread.bytes == 0)
        assert not server.limits.counts


async def test_a_peer_that_never_reads_is_cut(tmp_path: Path) -> None:
    limits = {"slow_bytes": 100 * KIB, "stalled_ms_max": 100}
    async with serving(tmp_path, broker=limits) as server:
        await fill(server, 1)
        await asked_and_not_read(server, 200)
        await eventually(lambda: server.limits.counts["reader_stalled"])
        assert server.limits.unread.bytes == 0


async def test_when_too_much_is_unread_the_others_are_spared(tmp_path: Path) -> None:
    limits = {
        "slow_bytes": 2_000 * KIB,
        "peer_unread_bytes_max": 4_000 * KIB,
        "unread_bytes_max": 6_000 * KIB,
    }
    async with serving(tmp_path, broker=limits) as server:
        await fill(server, 1)
        good = await Peer.to(server.broker_address)
        for _ in range(6):
            await asked_and_not_read(server, 200)
        await eventually(lambda: server.limits.counts["unread_bytes_cut"])
        assert server.limits.unread.bytes <= limits["unread_bytes_max"]
        pulled = await good.ask(RequestCode.PULL_MESSAGE, pulling())
        assert pulled.code == ResponseCode.SUCCESS


# Counters and log lines


async def test_an_event_is_counted_always_and_said_a_few_times_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ConnectionLimits(LOOPBACK)
    for _ in range(100):
        limits.note("frame_malformed", 5.5, address="a")
    assert len(caplog.records) == LINES_MAX
    assert caplog.records[0].levelno == logging.WARNING
    limits.note("frame_malformed", 6.5, address="a")
    assert len(caplog.records) == LINES_MAX + 1
    assert limits.counts["frame_malformed"] == 101


# Closed connections leave nothing behind


def test_a_splitter_that_was_fed_garbage_leaves_no_cycle() -> None:
    gc.disable()
    try:
        splitter = FrameSplitter()
        with pytest.raises(Exception, match="frame_too_large"):
            list(splitter.feed(GARBAGE))
        gone = weakref.ref(splitter)
        del splitter
        assert gone() is None
    finally:
        gc.enable()


async def talk(server: Server, peer: Peer) -> None:
    """Send a message and a heartbeat, and leave a pull waiting."""
    assert server.broker_address
    await peer.ask(SEND, sending(), b"x")
    await peer.ask(RequestCode.HEART_BEAT, body=heartbeat("a", "orders"))
    peer.write(encode_request(RequestCode.PULL_MESSAGE, 77, header=pulling(1)))
    await eventually(lambda: server.broker.pulling.polls.waiting)


@pytest.mark.parametrize("last", [b"", GARBAGE, begun_frame(900, 9), encode_request(SEND, 9)])
async def test_a_connection_that_is_closed_is_gone_without_the_collector(
    tmp_path: Path, last: bytes
) -> None:
    async with serving(tmp_path) as server:
        peer = await Peer.to(server.broker_address)
        await talk(server, peer)
        gone = [weakref.ref(connection) for connection in server._connections]
        assert len(gone) == 1
        gc.disable()
        try:
            peer.write(last)
            await peer.closed()
            await eventually(lambda: gone[0]() is None)
        finally:
            gc.enable()
        assert server.broker.pulling.polls.waiting == 0
