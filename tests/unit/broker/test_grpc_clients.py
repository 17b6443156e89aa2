"""A real gRPC client against the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from escrowmq.broker.net.grpc_limits import GrpcLimits
from escrowmq.protocol.http2.violations import Http2Error
from tests.unit.broker.grpc_echo import (
    CERTIFICATE,
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
    tls_config,
)
from tests.unit.broker.http2_peer import Http2Peer

TIMEOUT_S = 20.0
ANY_SIZE = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    async with echo_service() as service:
        yield service


@pytest.fixture
async def channel(echo: Echo) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(echo.target, options=ANY_SIZE) as made:
        yield made


async def failed(call: grpc.aio.UnaryUnaryCall) -> grpc.StatusCode:
    """Return the status of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code()


@pytest.mark.parametrize("size", [0, 1, 100, 16_379, 16_380, 100_000, 4 << 20])
async def test_messages_of_every_size_come_back(channel: grpc.aio.Channel, size: int) -> None:
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert await channel.unary_unary(ECHO)(message, timeout=TIMEOUT_S) == message


async def test_a_message_that_is_too_large_is_refused(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(ECHO)(bytes(5 << 20), timeout=TIMEOUT_S)
    assert await failed(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_many_calls_at_once_are_answered(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(ECHO)
    messages = [b"%d" % number * (number % 50) for number in range(2_000)]
    found = await asyncio.gather(*(call(message, timeout=TIMEOUT_S) for message in messages))
    assert found == messages


async def test_a_server_streams(echo: Echo, channel: grpc.aio.Channel) -> None:
    found = [one async for one in channel.unary_stream(MANY)(bytes(10_000), timeout=TIMEOUT_S)]
    assert found == [bytes(10_000)] * MANY_COUNT
    await echo.heard.wait_for("closed")


async def test_both_sides_stream(echo: Echo, channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream(CHAT)(timeout=TIMEOUT_S)
    for number in range(50):
        message = bytes(number * 1_000)
        await call.write(message)
        assert await call.read() == message
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await echo.heard.wait_for("half_close")
    await echo.heard.wait_for("closed")


async def test_failures_have_their_status(channel: grpc.aio.Channel) -> None:
    wanted = {"/no/Such": grpc.StatusCode.UNIMPLEMENTED, FAIL: grpc.StatusCode.INTERNAL}
    for path, status in wanted.items():
        assert await failed(channel.unary_unary(path)(b"", timeout=TIMEOUT_S)) is status


async def test_metadata_reach_the_handler(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(HEADER)
    for number in range(20):
        value = f"client@{number}" * (1 + number)
        metadata = ((FIELD.decode(), value), ("x-mq-request-id", str(number)))
        assert await call(b"", metadata=metadata, timeout=TIMEOUT_S) == value.encode()
    assert await call(b"", timeout=TIMEOUT_S) == b""


async def test_gzip_is_understood(channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary(ECHO)(
        bytes(100_000), compression=grpc.Compression.Gzip, timeout=TIMEOUT_S
    )
    assert await call == bytes(100_000)
    call = channel.unary_unary(ECHO)(
        bytes(100_000), compression=grpc.Compression.Deflate, timeout=TIMEOUT_S
    )
    assert await failed(call) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_ends_the_call_on_both_sides(
    echo: Echo, channel: grpc.aio.Channel
) -> None:
    status = await failed(channel.unary_unary(SILENT)(b"", timeout=0.1))
    assert status is grpc.StatusCode.DEADLINE_EXCEEDED
    await echo.heard.wait_for("closed")


async def test_a_cancel_reaches_the_handler(echo: Echo, channel: grpc.aio.Channel) -> None:
    unary = channel.unary_unary(SILENT)(b"", timeout=TIMEOUT_S)
    chat = channel.stream_stream(CHAT)(timeout=TIMEOUT_S)
    await chat.write(b"")
    await echo.heard.wait_for("opened", 2)
    unary.cancel()
    chat.cancel()
    await echo.heard.wait_for("closed", 2)


async def test_keepalive_pings_are_answered(echo: Echo) -> None:
    options = (
        *ANY_SIZE,
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
    )
    async with grpc.aio.insecure_channel(echo.target, options=options) as channel:
        chat = channel.stream_stream(CHAT)(timeout=TIMEOUT_S)
        await chat.write(b"x")
        assert await chat.read() == b"x"
        (connection,) = echo.door.connections
        heard_at = connection.heard_at
        async with asyncio.timeout(TIMEOUT_S):
            # Nothing else is sent, so each change is a PING.
            for _ in range(3):
                while connection.heard_at == heard_at:  # noqa: ASYNC110 - the client's PING
                    await asyncio.sleep(0.01)
                heard_at = connection.heard_at
        await chat.write(b"y")
        assert await chat.read() == b"y"
        chat.cancel()


async def test_a_slow_reader_gets_everything(echo: Echo, channel: grpc.aio.Channel) -> None:
    """The client's windows fill while no client reads, and other calls go on."""
    slow = channel.unary_stream(MANY)(bytes(100_000), timeout=TIMEOUT_S)
    await echo.heard.wait_for("opened")
    assert echo.heard.calls[0].unsent_bytes > 1_000_000
    assert await channel.unary_unary(ECHO)(b"x", timeout=TIMEOUT_S) == b"x"
    assert sum([len(one) async for one in slow]) == MANY_COUNT * 100_000
    assert echo.heard.calls[0].unsent_bytes == 0


# The end.


async def test_a_drained_connection_finishes_its_calls() -> None:
    async with echo_service() as echo:
        async with grpc.aio.insecure_channel(echo.target, options=ANY_SIZE) as channel:
            waiting = channel.unary_unary(SILENT)(b"", timeout=TIMEOUT_S)
            asyncio.ensure_future(waiting)  # noqa: RUF006 - awaited below
            await echo.heard.wait_for("opened")
            closing = asyncio.create_task(echo.door.close(10.0))
            while not next(iter(echo.door.connections))._streams.refuses_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            echo.heard.calls[0].answer(b"last words")
            assert await waiting == b"last words"
            await closing
        assert not echo.door.connections
        assert echo.counts["stopping"] == 0


async def test_a_call_on_its_way_while_the_door_closes_is_answered() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        await peer.pong()
        echo.door.close_soon()
        late = peer.call(b"on its way")
        assert (await peer.answer(late)).message == b"on its way"
        assert peer.goaways == [(2**31 - 1, 0)]
        (ping,) = [one for one in peer.frames if one.payload == b"draining"]
        peer.put(6, 1, 0, ping.payload)  # type: ignore[arg-type]  # PING with ACK
        assert await peer.gone() == 0
        assert peer.goaways[-1] == (late, 0)


async def test_a_connection_that_does_not_end_is_cut() -> None:
    async with echo_service() as echo:
        peer = await Http2Peer.to(echo)
        peer.headers(CHAT)
        await echo.heard.wait_for("opened")
        await echo.door.close(0.05)
        assert echo.counts["stopping"] == 1
        await echo.heard.wait_for("closed")
        await peer.gone()


async def test_a_handler_can_end_its_clients_connection(
    echo: Echo, channel: grpc.aio.Channel
) -> None:
    chat = channel.stream_stream(CHAT)(timeout=TIMEOUT_S)
    await chat.write(b"x")
    await echo.heard.wait_for("opened")
    (call,) = echo.heard.calls
    assert (call.peer_host, call.local_host) == ("127.0.0.1", "127.0.0.1")
    assert call.peer_port
    call.connection.close_soon()
    call.connection.close_soon()
    call.end(14, "go away")
    assert await chat.read() == b"x"
    assert await chat.code() is grpc.StatusCode.UNAVAILABLE
    # The client connects again by itself.
    assert await channel.unary_unary(ECHO)(b"x", timeout=TIMEOUT_S) == b"x"


# TLS.


async def ask_over_tls(echo: Echo, message: bytes) -> bytes:
    credentials = grpc.ssl_channel_credentials(CERTIFICATE.read_bytes())
    options = (*ANY_SIZE, ("grpc.ssl_target_name_override", "localhost"))
    async with grpc.aio.secure_channel(echo.target, credentials, options=options) as channel:
        found: bytes = await channel.unary_unary(ECHO)(message, timeout=TIMEOUT_S)
        return found


async def test_tls_and_plaintext_share_the_port() -> None:
    async with echo_service(tls=tls_config()) as echo:
        assert await ask_over_tls(echo, bytes(1 << 20)) == bytes(1 << 20)
        async with grpc.aio.insecure_channel(echo.target, options=ANY_SIZE) as channel:
            assert await channel.unary_unary(ECHO)(b"plain", timeout=TIMEOUT_S) == b"plain"


async def test_plaintext_can_be_refused() -> None:
    async with echo_service(tls=tls_config("required")) as echo:
        assert await ask_over_tls(echo, b"x") == b"x"
        peer = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
        peer.send(b"PRI")
        assert await peer.gone() == Http2Error.INADEQUATE_SECURITY
        assert echo.counts["tls_mismatch"] == 1


async def test_tls_without_a_certificate_is_refused(echo: Echo) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await ask_over_tls(echo, b"x")
    assert echo.counts["tls_mismatch"] >= 1


async def test_a_handshake_that_fails_or_stalls_ends_the_connection() -> None:
    limits = GrpcLimits(opening_ms_max=200)
    async with echo_service(limits, tls=tls_config()) as echo:
        for hello in (b"\x16\x03\x01\x00\x05hello", b"\x16\x03"):
            peer = Http2Peer(*await asyncio.open_connection("127.0.0.1", echo.port))
            peer.send(hello)
            async with asyncio.timeout(TIMEOUT_S):
                await peer.reader.read()
            await peer.close()
        assert echo.counts["opening_failed"] == 2
        assert not echo.door.connections
