from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from escrowmq.client.network import connection as connections
from escrowmq.client.network.connection import BrokerConnection, split_address
from escrowmq.model.errors import OutcomeUnknown, RequestRefused, Unavailable
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import (
    FrameSplitter,
    RemotingFrame,
    encode_request,
    encode_response,
)

CODE = RequestCode.HEART_BEAT


class Other:
    """The other end of the connection: it answers, asks or stays silent, as the test says."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[RemotingFrame] = asyncio.Queue()
        self.writer: asyncio.StreamWriter | None = None
        self.has_hung_up = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        splitter = FrameSplitter()
        try:
            while data := await reader.read(65_536):
                for frame in splitter.feed(data):
                    self.frames.put_nowait(frame)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.has_hung_up.set()

    def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)


@asynccontextmanager
async def connected(
    asked: list[RemotingFrame] | None = None,
) -> AsyncIterator[tuple[BrokerConnection, Other]]:
    other = Other()
    server = await asyncio.start_server(other.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    heard = asked if asked is not None else []
    connection = await BrokerConnection.open(
        f"127.0.0.1:{port}", lambda _connection, frame: heard.append(frame)
    )
    try:
        yield connection, other
    finally:
        connection.close()
        await connection.lost
        await other.has_hung_up.wait()
        server.close()
        await server.wait_closed()


async def test_answers_reach_their_callers_in_any_order() -> None:
    async with connected() as (connection, other):
        first = connection.ask_soon(CODE, body=b"first")
        second = connection.ask_soon(CODE, body=b"second")
        asked = [await other.frames.get(), await other.frames.get()]
        assert [frame.body for frame in asked] == [b"first", b"second"]
        for frame in reversed(asked):
            other.write(encode_response(frame, 0, body=frame.body + b"!"))
        assert (await first).body == b"first!"
        assert (await second).body == b"second!"


async def test_a_lost_connection_leaves_the_outcome_open() -> None:
    async with connected() as (connection, other):
        answer = connection.ask_soon(CODE)
        await other.frames.get()
        assert other.writer is not None
        other.writer.close()
        with pytest.raises(OutcomeUnknown, match="connection_lost"):
            await answer
        with pytest.raises(Unavailable, match="connection_lost"):
            await connection.ask(CODE)
        assert not connection.tell(CODE)


async def test_a_late_answer_is_not_waited_for() -> None:
    async with connected() as (connection, other):
        with pytest.raises(OutcomeUnknown, match="request_timed_out"):
            await connection.ask(CODE, timeout_s=0.01)
        # The late answer must not affect the next request.
        other.write(encode_response(await other.frames.get(), 0))
        again = connection.ask_soon(CODE)
        other.write(encode_response(await other.frames.get(), 0, body=b"now"))
        assert (await again).body == b"now"


async def test_requests_without_an_answer_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNANSWERED_MAX", 2)
    async with connected() as (connection, other):
        asking = [asyncio.ensure_future(connection.ask(CODE)) for _ in range(5)]
        answered = 0
        while answered < 5:
            frame = await other.frames.get()
            assert other.frames.qsize() < 2
            answered += 1
            other.write(encode_response(frame, 0))
        await asyncio.gather(*asking)


async def test_those_held_back_are_told_when_the_connection_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "UNANSWERED_MAX", 1)
    async with connected() as (connection, other):
        first = asyncio.ensure_future(connection.ask(CODE))
        held = asyncio.ensure_future(connection.ask(CODE))
        await other.frames.get()
        assert other.writer is not None
        other.writer.close()
        with pytest.raises(OutcomeUnknown):
            await first
        with pytest.raises(Unavailable):
            await held


async def test_requests_of_the_other_side_are_passed_on() -> None:
    asked: list[RemotingFrame] = []
    async with connected(asked) as (connection, other):
        answer = connection.ask_soon(CODE)
        frame = await other.frames.get()
        other.write(encode_request(39, 7, body=b"what became of it?", is_one_way=True))
        other.write(encode_response(frame, 0))
        await answer
        assert [(one.code, one.body) for one in asked] == [(39, b"what became of it?")]


async def test_garbage_ends_the_connection() -> None:
    async with connected() as (connection, other):
        answer = connection.ask_soon(CODE)
        await other.frames.get()
        other.write(b"\xff" * 64)
        with pytest.raises(OutcomeUnknown):
            await answer
        assert not connection.is_open


async def test_a_broker_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Unavailable, match="broker_unreachable"):
        await BrokerConnection.open("127.0.0.1:1", lambda *_: None)


async def test_an_unanswered_request_whose_caller_is_gone_logs_no_warning() -> None:
    async with connected() as (connection, other):
        asking = asyncio.ensure_future(connection.ask(CODE))
        await other.frames.get()
        asking.cancel()
        await asyncio.wait([asking])
    gc.collect()


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":9876", "host:0", "h:65536"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(RequestRefused, match="address_illegal"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("127.0.0.1:9876") == ("127.0.0.1", 9876)
    assert split_address("[::1]:9876") == ("::1", 9876)
