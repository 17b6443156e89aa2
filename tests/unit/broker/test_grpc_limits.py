"""The gRPC door bounds what a client can cost, and closes what is dead."""

from __future__ import annotations

import asyncio

import pytest

from escrowmq.broker.config import BrokerConfig
from escrowmq.broker.net import grpc_door
from escrowmq.broker.net.grpc_limits import (
    CONTROL_MAX,
    CONTROL_PER_S,
    RESETS_MAX,
    RESETS_PER_S,
    FloodGuard,
    GrpcLimits,
)
from escrowmq.protocol.http2.frames import (
    END_STREAM,
    PREFACE,
    FrameKind,
    Http2Setting,
    frame,
    rst_stream,
    settings_frame,
    window_update,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD
from escrowmq.protocol.http2.violations import Http2Error, Http2Violation
from tests.unit.broker.grpc_echo import CHAT, FIELD, HEADER, MANY, SILENT, echo_service
from tests.unit.broker.http2_peer import Http2Peer

PING = frame(FrameKind.PING, 0, 0, bytes(8))


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "LOOK_S", 0.02)


@pytest.mark.parametrize(
    "flood",
    [
        PING,
        settings_frame({}),
        frame(FrameKind.PRIORITY, 0, 1, bytes(4) + b"\x10"),
        frame(FrameKind.DATA, 0, 1),
        frame(FrameKind.GOAWAY, 0, 0, bytes(8)),
        bytes((0, 0, 0, 0x77, 0, 0, 0, 0, 0)),  # An unknown kind.
    ],
)
async def test_a_flood_of_control_frames_ends_the_connection(flood: bytes) -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        peer.headers(CHAT)
        peer.send(flood * (4 * CONTROL_MAX))
        assert await peer.gone() == Http2Error.ENHANCE_YOUR_CALM


async def test_a_ping_with_each_call_is_no_flood() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        for _ in range(CONTROL_MAX // 100):
            streams = [peer.call(b"x") for _ in range(100)]
            peer.send(PING * 200 + window_update(0, 600))
            await peer.answer(streams[-1])
        assert not peer.is_gone
        await peer.close()


async def test_rapid_resets_end_the_connection() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        for _ in range(2 * RESETS_MAX):
            peer.send(rst_stream(peer.headers(CHAT), Http2Error.CANCEL))
        assert await peer.gone() == Http2Error.ENHANCE_YOUR_CALM
        assert echo.heard.counts["closed"] == echo.heard.counts["opened"]


async def test_resets_that_the_client_provokes_count_too() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        for _ in range(2 * RESETS_MAX):
            peer.send(window_update(peer.headers(CHAT), 0))
        assert await peer.gone() == Http2Error.ENHANCE_YOUR_CALM


def test_floods_are_forgotten_with_time() -> None:
    guard = FloodGuard(0.0)
    for _ in range(CONTROL_MAX):
        guard.control(0.0)
    for _ in range(RESETS_MAX):
        guard.reset(0.0)
    with pytest.raises(Http2Violation):
        guard.control(0.0)
    with pytest.raises(Http2Violation):
        guard.reset(0.0)
    for _ in range(int(CONTROL_PER_S)):
        guard.control(1.5)
    for _ in range(int(RESETS_PER_S)):
        guard.reset(1.5)


async def test_a_header_block_without_end_ends_the_connection() -> None:
    async with echo_service() as echo:
        for piece in (b"", bytes(1_000)):
            peer = await Http2Peer.to(echo)
            peer.put(FrameKind.HEADERS, 0, 1, b"")
            peer.send(frame(FrameKind.CONTINUATION, 0, 1, piece) * 200)
            assert await peer.gone() == Http2Error.ENHANCE_YOUR_CALM


async def test_calls_beyond_the_limit_are_refused() -> None:
    async with echo_service(GrpcLimits(streams_max=3)) as echo:
        peer = await Http2Peer.to(echo)
        streams = [peer.call(path=SILENT) for _ in range(4)]
        assert (await peer.answer(streams[3])).reset == Http2Error.REFUSED_STREAM
        peer.send(rst_stream(streams[0], Http2Error.CANCEL))
        assert (await peer.answer(peer.call(b"next"))).message == b"next"
        await peer.close()


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with echo_service(GrpcLimits(connections_max=2)) as echo:
        peers = [await Http2Peer.to(echo) for _ in range(2)]
        third = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
        assert await third.gone() is None
        assert echo.counts["too_many_connections"] == 1
        for peer in peers:
            assert (await peer.answer(peer.call(b"x"))).message == b"x"
            await peer.close()


async def test_a_message_beyond_the_limit_is_refused_and_others_are_not() -> None:
    async with echo_service(GrpcLimits(message_bytes_max=1_000)) as echo:
        peer = await Http2Peer.to(echo)
        assert (await peer.answer(peer.call(bytes(1_001)))).status == "8"
        assert (await peer.answer(peer.call(bytes(1_000)))).status == "0"
        await peer.close()


async def test_data_of_a_refused_request_is_dropped_and_granted_again() -> None:
    async with echo_service(GrpcLimits(message_bytes_max=1_000)) as echo:
        peer = await Http2Peer.to(echo)
        stream_id = peer.headers(content_type="text/html")
        for _ in range(20):
            peer.put(FrameKind.DATA, 0, stream_id, bytes(16_000))
        await peer.pong()
        assert echo.door.shared.waiting.bytes == 0
        grants = [one for one in peer.frames if one.kind == FrameKind.WINDOW_UPDATE]
        assert stream_id in {one.stream_id for one in grants}
        peer.put(FrameKind.DATA, END_STREAM, stream_id)
        assert (await peer.answer(stream_id)).fields[":status"] == "415"
        await peer.close()


async def test_a_reader_that_takes_nothing_is_cut_at_the_limit() -> None:
    limits = GrpcLimits(unsent_bytes_max=1 << 20)
    async with echo_service(limits) as echo:
        peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 0})
        for _ in range(30):
            peer.call(bytes(10_000), MANY)
        await peer.gone()
        assert echo.counts["slow_reader_cut"] == 1
        assert echo.door.shared.unread.bytes == 0
        await echo.heard.wait_for("closed", echo.heard.counts["opened"])


async def test_a_peer_that_does_not_read_its_socket_is_not_read() -> None:
    limits = GrpcLimits(slow_bytes=64 * 1024, unsent_bytes_max=1 << 30)
    async with echo_service(limits) as echo:
        windows = {Http2Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}
        peer = await Http2Peer.to(echo, windows)
        peer.send(window_update(0, 2**31 - 1 - 65_535))
        (connection,) = echo.door.connections
        streams = []
        async with asyncio.timeout(10):
            while not connection._is_paused:
                streams.append(peer.call(bytes(16_000), MANY))
                await asyncio.sleep(0)
        assert connection.socket_bytes > 64 * 1024
        # It reads again when the peer has read, and answers everything.
        for stream_id in streams:
            assert (await peer.answer(stream_id)).status == "0"
        assert not connection._is_paused
        assert echo.door.shared.unread.bytes == 0
        await peer.close()


async def test_a_reader_that_stalls_is_cut() -> None:
    async with echo_service(GrpcLimits(stalled_ms_max=100)) as echo:
        peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 10})
        peer.call(bytes(100))
        await peer.gone()
        assert echo.counts["reader_stalled"] == 1


@pytest.mark.parametrize("part", [b"\0\0", MESSAGE_HEAD.pack(0, 100) + b"part"])
async def test_a_frame_or_message_without_end_is_cut(part: bytes) -> None:
    async with echo_service(GrpcLimits(stalled_ms_max=100)) as echo:
        peer = await Http2Peer.to(echo)
        stream_id = peer.headers()
        peer.send(part if len(part) == 2 else frame(FrameKind.DATA, 0, stream_id, part))
        await peer.gone()
        assert echo.counts["frame_late"] == 1
        assert echo.door.shared.waiting.bytes == 0


async def test_incomplete_messages_share_a_budget() -> None:
    """The connection that holds most is cut; others go on."""
    config = BrokerConfig(waiting_bytes_max=1 << 20)
    async with echo_service(shared=config) as echo:
        hog, other = await Http2Peer.to(echo), await Http2Peer.to(echo)
        message = MESSAGE_HEAD.pack(0, 4 << 20) + bytes(10_000)
        for _ in range(120):
            hog.put(FrameKind.DATA, 0, hog.headers(), message)
        await hog.gone()
        assert echo.counts["waiting_bytes_cut"] == 1
        assert (await other.answer(other.call(b"x"))).message == b"x"
        await other.close()


async def test_a_complete_message_without_its_end_counts_too() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        stream_id = peer.headers()
        peer.message(stream_id, bytes(1_000))
        await peer.pong()
        assert echo.door.shared.waiting.bytes == 1_000
        peer.put(FrameKind.DATA, END_STREAM, stream_id)
        assert (await peer.answer(stream_id)).message == bytes(1_000)
        assert echo.door.shared.waiting.bytes == 0
        await peer.close()


async def test_an_idle_connection_is_closed() -> None:
    async with echo_service(GrpcLimits(idle_ms_max=150)) as echo:
        peer = await Http2Peer.to(echo)
        assert (await peer.answer(peer.call(b"x"))).message == b"x"
        assert await peer.gone() == Http2Error.NO_ERROR


async def test_a_client_with_a_call_is_pinged_and_cut_if_it_is_gone() -> None:
    async with echo_service(GrpcLimits(idle_ms_max=300)) as echo:
        peer = await Http2Peer.to(echo)
        peer.headers(CHAT)
        await peer.until(lambda: any(one.kind == FrameKind.PING for one in peer.frames))
        (ping,) = [one for one in peer.frames if one.kind == FrameKind.PING]
        peer.put(FrameKind.PING, 1, 0, ping.payload)
        await peer.until(lambda: sum(one.kind == FrameKind.PING for one in peer.frames) == 2)
        assert not peer.is_gone
        assert echo.heard.counts["closed"] == 0
        assert await peer.gone() is None
        assert echo.counts["peer_vanished"] == 1
        await echo.heard.wait_for("closed")


@pytest.mark.parametrize("first", [b"", PREFACE[:5]])
async def test_a_connection_that_says_nothing_is_closed(first: bytes) -> None:
    async with echo_service(GrpcLimits(opening_ms_max=100)) as echo:
        peer = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
        peer.send(first)
        await peer.gone()
        assert echo.counts["preface_late"] + echo.counts["opening_failed"] == 1


async def test_a_value_that_cannot_be_decoded_ends_the_connection() -> None:
    """Values that change are decoded only when a handler asks."""
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        for number in range(3):
            stream_id = peer.headers(HEADER, extra=((FIELD.decode(), f"client-{number}"),))
            peer.message(stream_id, b"", END_STREAM)
            assert (await peer.answer(stream_id)).message == b"client-%d" % number
        block = peer.encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", HEADER),
                (":authority", "test"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                (FIELD.decode(), "?"),
            ]
        )
        assert block[-3:-1] != b"\x84\xff"
        spoiled = block[: block.rindex(b"\x82")] + b"\x84\xff\xff\xff\xff"
        peer.put(FrameKind.HEADERS, 4, 7, spoiled)
        peer.message(7, b"", END_STREAM)
        assert await peer.gone() == Http2Error.COMPRESSION_ERROR


async def test_one_busy_connection_leaves_time_for_others() -> None:
    """It takes turns: another client's calls are answered in between."""
    async with echo_service() as echo:
        busy, other = await Http2Peer.to(echo), await Http2Peer.to(echo)
        busy.send(window_update(0, 1 << 30))
        last = [busy.call(b"x") for _ in range(3_000)][-1]
        waiting = asyncio.ensure_future(busy.answer(last))
        for _ in range(10):
            assert (await other.answer(other.call(b"y"))).message == b"y"
        assert (await waiting).message == b"x"
        assert echo.door.shared.waiting.bytes == 0
        for peer in (busy, other):
            await peer.close()
