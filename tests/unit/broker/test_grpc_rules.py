"""The gRPC door keeps the rules of HTTP/2, and its clients to them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from escrowmq.broker.net.grpc_call import GrpcCall
from escrowmq.protocol.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    FrameKind,
    Http2Setting,
    frame,
    rst_stream,
    settings_frame,
    window_update,
)
from escrowmq.protocol.http2.grpc_messages import MESSAGE_HEAD
from escrowmq.protocol.http2.violations import Http2Error
from tests.unit.broker.grpc_echo import (
    CHAT,
    ECHO,
    FAIL,
    FIELD,
    HEADER,
    MANY,
    MANY_COUNT,
    SILENT,
    Echo,
    echo_service,
)
from tests.unit.broker.http2_peer import Http2Peer


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with echo_service() as service:
        yield service


@pytest.fixture
async def peer(echo: Echo) -> AsyncIterator[Http2Peer]:
    made = await Http2Peer.to(echo)
    yield made
    await made.close()


async def test_a_call_is_answered(peer: Http2Peer) -> None:
    answer = await peer.answer(peer.call(b"hello"))
    assert answer.message == b"hello"
    assert answer.fields == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-accept-encoding": "identity,gzip",
        "grpc-status": "0",
    }


async def test_the_table_may_be_used_until_our_settings_are_acknowledged(echo: Echo) -> None:
    """And afterwards the client must give it up, which it says in its next block."""
    peer = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
    peer.send(PREFACE + settings_frame({}))
    streams = [
        peer.headers(HEADER, extra=((FIELD.decode(), f"client-{number % 2}"),))
        for number in range(6)
    ]
    for stream_id in streams:
        peer.message(stream_id, b"", END_STREAM)
    for number, stream_id in enumerate(streams):
        assert (await peer.answer(stream_id)).message == b"client-%d" % (number % 2)
    peer.put(FrameKind.SETTINGS, 1, 0)
    peer.encoder.header_table_size = 0
    for number in range(6):
        stream_id = peer.headers(HEADER, extra=((FIELD.decode(), f"later-{number}"),))
        peer.message(stream_id, b"", END_STREAM)
        assert (await peer.answer(stream_id)).message == b"later-%d" % number
    peer.encoder.header_table_size = 100
    peer.call()
    assert await peer.gone() == Http2Error.COMPRESSION_ERROR


async def test_a_client_that_lowers_its_table_is_told_that_we_use_none(echo: Echo) -> None:
    peer = await Http2Peer.to(echo, {Http2Setting.HEADER_TABLE_SIZE: 0})
    peer.decoder.max_allowed_table_size = 0
    for _ in range(2):
        assert (await peer.answer(peer.call(b"x"))).message == b"x"
    blocks = [one.payload for one in peer.frames if one.kind == FrameKind.HEADERS]
    assert [block[:1] == b"\x20" for block in blocks] == [True, False, False, False]
    await peer.close()


async def test_a_header_block_may_come_in_pieces_padded_and_with_a_priority(
    peer: Http2Peer,
) -> None:
    block = peer.encoder.encode(
        [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", ECHO),
            ("content-type", "application/grpc"),
        ]
    )
    padded = bytes((3,)) + bytes(4) + b"\x10" + block[:2] + bytes(3)
    peer.put(FrameKind.HEADERS, PADDED | PRIORITY_FLAG, 1, padded)
    peer.put(FrameKind.CONTINUATION, 0, 1, block[2:9])
    peer.put(FrameKind.CONTINUATION, END_HEADERS, 1, block[9:])
    message = MESSAGE_HEAD.pack(0, 5) + b"hello"
    peer.put(FrameKind.DATA, PADDED, 1, bytes((2,)) + message[:3] + bytes(2))
    peer.put(FrameKind.DATA, 0, 1, message[3:7])
    peer.put(FrameKind.DATA, PADDED | END_STREAM, 1, bytes((0,)) + message[7:])
    assert (await peer.answer(1)).message == b"hello"


async def test_a_stream_carries_messages_both_ways(peer: Http2Peer) -> None:
    stream_id = peer.headers(CHAT)
    packed = [MESSAGE_HEAD.pack(0, 1) + b"%d" % number for number in range(4)]
    # Three messages in one frame, and half of the fourth.
    peer.put(FrameKind.DATA, 0, stream_id, b"".join(packed[:3]) + packed[3][:2])
    await peer.until(lambda: peer.answers[stream_id].data == b"".join(packed[:3]))
    peer.put(FrameKind.DATA, END_STREAM, stream_id, packed[3][2:])
    answer = await peer.answer(stream_id)
    assert answer.data == b"".join(packed)
    assert answer.status == "0"


async def test_gzip_is_unpacked(peer: Http2Peer) -> None:
    stream_id = peer.headers(extra=(("grpc-encoding", "gzip"),))
    message = gzip.compress(b"hello")
    peer.put(FrameKind.DATA, END_STREAM, stream_id, MESSAGE_HEAD.pack(1, len(message)) + message)
    assert (await peer.answer(stream_id)).message == b"hello"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", "13"),  # No message.
        (MESSAGE_HEAD.pack(0, 1) + b"1" + MESSAGE_HEAD.pack(0, 1) + b"2", "13"),
        (MESSAGE_HEAD.pack(0, 10) + b"1", "13"),  # An incomplete one.
        (MESSAGE_HEAD.pack(0, 2**31), "8"),
        (MESSAGE_HEAD.pack(1, 1) + b"1", "12"),  # Compressed, by an unnamed method.
    ],
)
async def test_a_request_is_one_message(peer: Http2Peer, data: bytes, status: str) -> None:
    stream_id = peer.headers()
    peer.put(FrameKind.DATA, END_STREAM, stream_id, data)
    answer = await peer.answer(stream_id)
    assert (answer.status, answer.data) == (status, b"")
    assert (await peer.answer(peer.call(b"next"))).message == b"next"


@pytest.mark.parametrize(
    ("path", "status"), [("/no/Method", "12"), (FAIL, "13"), (ECHO + "x", "12")]
)
async def test_a_call_that_fails_has_a_status(peer: Http2Peer, path: str, status: str) -> None:
    assert (await peer.answer(peer.call(path=path))).status == status


async def test_a_call_that_is_refused_early_may_still_be_sent(peer: Http2Peer) -> None:
    stream_id = peer.headers("/no/Method")
    await peer.until(lambda: peer.answers[stream_id].reset is not None)
    assert peer.answers[stream_id].reset == Http2Error.NO_ERROR
    assert peer.answers[stream_id].status == "12"
    peer.message(stream_id, b"late", END_STREAM)
    await peer.pong()
    assert (await peer.answer(peer.call(b"next"))).message == b"next"


async def test_other_clients_get_http_errors(peer: Http2Peer) -> None:
    stream_id = peer.headers(flags=END_STREAM, content_type="text/html")
    answer = await peer.answer(stream_id)
    assert answer.fields[":status"] == "415"
    assert b"gRPC" in answer.data
    answer = await peer.answer(peer.headers(flags=END_STREAM, method="GET"))
    assert answer.fields[":status"] == "405"
    answer = await peer.answer(peer.headers(flags=END_STREAM, extra=(("x-large", "a" * 20_000),)))
    assert answer.fields[":status"] == "431"
    assert (await peer.answer(peer.call(b"next"))).message == b"next"


async def test_a_told_length_must_be_right(peer: Http2Peer) -> None:
    for length, is_right in (("6", True), ("7", False), ("5", False)):
        stream_id = peer.headers(extra=(("content-length", length),))
        peer.message(stream_id, b"x", END_STREAM)
        answer = await peer.answer(stream_id)
        assert answer.reset == (None if is_right else Http2Error.PROTOCOL_ERROR)


# Deadlines and cancels.


async def test_a_deadline_ends_a_call(echo: Echo, peer: Http2Peer) -> None:
    stream_id = peer.headers(SILENT, extra=(("grpc-timeout", "60m"),))
    peer.message(stream_id, b"", END_STREAM)
    answer = await peer.answer(stream_id)
    assert answer.status == "4"
    await echo.heard.wait_for("closed")


async def test_a_malformed_timeout_is_refused(peer: Http2Peer) -> None:
    stream_id = peer.headers(flags=END_STREAM, extra=(("grpc-timeout", "soon"),))
    assert (await peer.answer(stream_id)).status == "13"


async def test_a_deadline_ends_a_request_that_does_not_come(peer: Http2Peer) -> None:
    stream_id = peer.headers(extra=(("grpc-timeout", "50m"),))
    answer = await peer.answer(stream_id)
    assert answer.status == "4"


async def test_a_deadline_ends_an_answer_that_is_not_read(echo: Echo) -> None:
    peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 10})
    stream_id = peer.headers(MANY, extra=(("grpc-timeout", "50m"),))
    peer.message(stream_id, bytes(100), END_STREAM)
    assert (await peer.answer(stream_id)).reset == Http2Error.CANCEL
    await echo.heard.wait_for("closed")
    await peer.close()


async def test_a_deadline_ends_a_call_after_another_one_failed_to_end(
    echo: Echo, peer: Http2Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    expire = GrpcCall.expire
    failed: list[GrpcCall] = []

    def fail_once(call: GrpcCall) -> None:
        if not failed:
            failed.append(call)
            raise RuntimeError
        expire(call)

    monkeypatch.setattr(GrpcCall, "expire", fail_once)
    for _ in range(3):
        stream_id = peer.headers(SILENT, extra=(("grpc-timeout", "60m"),))
        peer.message(stream_id, b"", END_STREAM)
    await echo.heard.wait_for("closed", 2)
    assert [call.is_open for call in echo.heard.calls].count(True) == 1


async def test_a_cancelled_call_is_over_once(echo: Echo, peer: Http2Peer) -> None:
    stream_id = peer.call(path=SILENT)
    chat_id = peer.headers(CHAT)
    await echo.heard.wait_for("opened", 2)
    peer.send(rst_stream(stream_id, Http2Error.CANCEL) + rst_stream(chat_id, Http2Error.CANCEL))
    await echo.heard.wait_for("closed", 2)
    for call in echo.heard.calls:
        assert not call.is_open
        assert not call.send(b"late")
        call.answer(b"late")
        call.end()
    await peer.pong()
    assert echo.heard.counts["closed"] == 2
    assert not peer.answers[stream_id].fields


async def test_a_lost_connection_ends_its_calls(echo: Echo, peer: Http2Peer) -> None:
    peer.call(path=SILENT)
    peer.headers(CHAT)
    await echo.heard.wait_for("opened", 2)
    peer.writer.transport.abort()
    await echo.heard.wait_for("closed", 2)
    assert all(not call.is_open for call in echo.heard.calls)
    assert not echo.door.connections


# Flow control.


async def test_an_answer_waits_for_the_windows(echo: Echo) -> None:
    peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 100})
    body = bytes(range(250))
    stream_id = peer.call(body)
    await peer.pong()
    assert len(peer.answers[stream_id].data) == 100
    peer.send(window_update(stream_id, 55))
    await peer.pong()
    assert len(peer.answers[stream_id].data) == 155
    # A change of the setting also moves the windows of open streams, even below zero.
    peer.send(settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 50}))
    peer.send(window_update(stream_id, 50))
    await peer.pong()
    assert len(peer.answers[stream_id].data) == 155
    peer.send(settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 1_000}))
    answer = await peer.answer(stream_id)
    assert answer.message == body
    assert answer.status == "0"
    await peer.close()


async def test_all_answers_share_the_connections_window(peer: Http2Peer) -> None:
    body = bytes(30_000)
    streams = [peer.call(body) for _ in range(4)]
    await peer.pong()
    received = [len(peer.answers[one].data) for one in streams]
    assert sum(received) == 65_535
    peer.send(window_update(0, 1 << 20))
    for stream_id in streams:
        assert (await peer.answer(stream_id)).message == body


async def test_waiting_answers_take_turns(echo: Echo) -> None:
    peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    body = bytes(100_000)
    first, second = peer.call(body), peer.call(body)
    await peer.pong()
    peer.send(window_update(0, 65_535))
    await peer.pong()
    sizes = [len(peer.answers[one].data) for one in (first, second)]
    assert sum(sizes) == 2 * 65_535
    assert min(sizes) > 25_000
    await peer.close()


async def test_frames_have_the_size_that_the_client_takes(echo: Echo) -> None:
    peer = await Http2Peer.to(
        echo, {Http2Setting.INITIAL_WINDOW_SIZE: 1 << 20, Http2Setting.MAX_FRAME_SIZE: 20_000}
    )
    peer.send(window_update(0, 1 << 20))
    stream_id = peer.call(bytes(50_000))
    assert len((await peer.answer(stream_id)).message) == 50_000
    sizes = [len(one.payload) for one in peer.frames if one.kind == FrameKind.DATA]
    assert sizes == [20_000, 20_000, 10_005]
    await peer.close()


async def test_the_client_is_granted_more_while_it_sends(echo: Echo, peer: Http2Peer) -> None:
    stream_id = peer.headers(CHAT)
    piece = MESSAGE_HEAD.pack(0, 16_000) + bytes(16_000)
    for _ in range(700):
        peer.put(FrameKind.DATA, 0, stream_id, piece)
    await echo.heard.wait_for("message", 700)
    await peer.pong()
    grants = [one.stream_id for one in peer.frames if one.kind == FrameKind.WINDOW_UPDATE]
    assert stream_id in grants
    assert grants.count(0) > 1


async def test_many_messages_are_held_back_without_a_window(echo: Echo) -> None:
    peer = await Http2Peer.to(echo, {Http2Setting.INITIAL_WINDOW_SIZE: 0})
    stream_id = peer.call(bytes(50), MANY)
    await echo.heard.wait_for("opened")
    (call,) = echo.heard.calls
    assert call.unsent_bytes == MANY_COUNT * 55
    assert echo.heard.counts["closed"] == 0
    peer.send(window_update(stream_id, 1 << 20))
    answer = await peer.answer(stream_id)
    assert len(answer.data) == MANY_COUNT * 55
    await echo.heard.wait_for("closed")
    assert call.unsent_bytes == 0
    await peer.close()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.DATA, 0, 1, b"x"), Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.HEADERS, END_HEADERS, 2), Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.CONTINUATION, END_HEADERS, 1), Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.GOAWAY, 0, 1, bytes(8)), Http2Error.PROTOCOL_ERROR),
        (window_update(0, 2**31 - 1), Http2Error.FLOW_CONTROL_ERROR),
        (window_update(0, 0), Http2Error.PROTOCOL_ERROR),
        (settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 2**31}), Http2Error.FLOW_CONTROL_ERROR),
        (settings_frame({Http2Setting.MAX_FRAME_SIZE: 1}), Http2Error.PROTOCOL_ERROR),
        (frame(FrameKind.DATA, 0, 1, bytes(16_385)), Http2Error.FRAME_SIZE_ERROR),
    ],
)
async def test_a_violation_ends_the_connection(echo: Echo, data: bytes, error: Http2Error) -> None:
    peer = await Http2Peer.to(echo)
    if data.startswith(b"GET"):
        await peer.close()
        peer = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
    peer.send(data)
    assert await peer.gone() == error
    assert echo.counts["http2_malformed"] == 1
    await peer.close()
