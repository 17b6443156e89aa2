"""The error of a listener's local transaction goes to the broker as the remark of an UNKNOWN."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from escrowmq.broker.net.connection import ClientConnection
from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.check_answers import REMARK_CHARS_MAX
from escrowmq.client.producer.listener import Executed
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader
from escrowmq.transaction.states import State
from tests.unit.broker.wire import eventually, serving
from tests.unit.client.apache_like import play_apache
from tests.unit.client.test_producer import halves
from tests.unit.logged import events, facts

LOGGED = "local_transaction_unknown"


class Listener:
    """Listener whose local transaction raises its argument, or returns it."""

    def execute_local_transaction(self, _message: Message, arg: object) -> Resolution | None:
        if isinstance(arg, Exception):
            raise arg
        assert arg is None or isinstance(arg, Resolution)
        return arg

    def check_local_transaction(self, _message: Received) -> Resolution:
        return Resolution.UNKNOWN


class AsyncListener(Listener):
    async def execute_local_transaction(  # type: ignore[override]
        self, message: Message, arg: object
    ) -> Resolution | None:
        return super().execute_local_transaction(message, arg)


@contextmanager
def ends(server: Server) -> Iterator[list[RemotingFrame]]:
    """Collect the END_TRANSACTION frames that the broker gets."""
    handle, frames = server.broker.handle, []

    def heard(connection: ClientConnection, frame: RemotingFrame) -> None:
        if frame.code == RequestCode.END_TRANSACTION:
            frames.append(frame)
        handle(connection, frame)

    server.broker.handle = heard  # type: ignore[method-assign]
    try:
        yield frames
    finally:
        server.broker.handle = handle  # type: ignore[method-assign]


def check_frame(frame: RemotingFrame, done: Executed, remark: str) -> None:
    header = read_header(EndTransactionHeader, frame.ext)
    assert frame.remark == remark
    assert frame.is_one_way
    assert (header.resolution_bits, header.is_check_answer) == (0, False)
    assert (header.half_offset, header.unique_key) == (done.half_offset, done.message_id)


@pytest.mark.parametrize("is_apache", [False, True])
async def test_the_error_of_a_local_transaction_is_told_and_logged_by_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        with ends(server) as frames:
            producer = Producer(server.name_address, "pay", listener=Listener())
            done = await asyncio.to_thread(
                producer.send_in_transaction,
                Message(topic="orders", body=b"1"),
                LookupError("no table"),
            )
            await eventually(lambda: facts(caplog, LOGGED))
            (frame,) = frames
        check_frame(frame, done, "LookupError: no table")
        assert (done.resolution, done.decided) == (Resolution.UNKNOWN, None)
        assert isinstance(done.error, LookupError)
        (line,) = facts(caplog, LOGGED)
        assert line["remark"] == "LookupError: no table"
        assert line["transaction_id"] == done.transaction_id
        assert [half.state for half in halves(server)] == [State.PREPARED]
        await asyncio.to_thread(producer.close)


@pytest.mark.parametrize("is_apache", [False, True])
async def test_an_async_listeners_error_is_told_and_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_apache: bool
) -> None:
    async with serving(tmp_path) as server:
        if is_apache:
            play_apache(server)
        with ends(server) as frames:
            listener = AsyncListener()
            async with AsyncProducer(server.name_address, "pay", listener=listener) as producer:  # type: ignore[arg-type]
                done = await producer.send_in_transaction(
                    Message(topic="orders", body=b"1"), ValueError("x" * 5_000)
                )
            # The close waited for the request.
            await eventually(lambda: facts(caplog, LOGGED))
            (frame,) = frames
        check_frame(frame, done, ("ValueError: " + "x" * 5_000)[:REMARK_CHARS_MAX])


async def test_a_local_transaction_that_only_does_not_know_sends_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with ends(server) as frames:
            async with AsyncProducer(server.name_address, "pay", listener=Listener()) as producer:
                done = await producer.send_in_transaction(Message(topic="orders", body=b"1"))
        assert done.resolution is Resolution.UNKNOWN
        assert frames == []


async def test_a_broker_that_is_gone_changes_nothing_for_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = AsyncExitStack()

    class Stopping(Listener):
        async def execute_local_transaction(  # type: ignore[override]
            self, _message: Message, _arg: object
        ) -> Resolution:
            await running.aclose()
            raise LookupError("no table")

    server = await running.enter_async_context(serving(tmp_path))
    producer = AsyncProducer(server.name_address, "pay", listener=Stopping())  # type: ignore[arg-type]
    done = await producer.send_in_transaction(Message(topic="orders", body=b"1"))
    assert isinstance(done.error, LookupError)
    await producer.close()
    assert "failure_untold" in events(caplog)


async def test_a_listener_may_close_its_producer_and_fail(tmp_path: Path) -> None:
    class Closing(Listener):
        async def execute_local_transaction(  # type: ignore[override]
            self, _message: Message, _arg: object
        ) -> Resolution:
            await producer.close()
            raise LookupError("no table")

    async with serving(tmp_path) as server:
        producer = AsyncProducer(server.name_address, "pay", listener=Closing())  # type: ignore[arg-type]
        done = await producer.send_in_transaction(Message(topic="orders", body=b"1"))
        assert isinstance(done.error, LookupError)
        assert done.decided is None
