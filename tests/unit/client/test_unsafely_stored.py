"""Apache's broker stores a message, and code 10, 11 or 12 says: not flushed or not replicated.

An ordinary message counts as sent, and its sender gets the status. The producer rolls back a half
message before the local transaction begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received, SendStatus
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.errors import Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.transaction.states import State
from tests.unit.broker.wire import eventually, serving
from tests.unit.client.apache_like import play_apache, store_unsafely
from tests.unit.client.test_producer import check_all, halves
from tests.unit.client.test_producing import bodies

STATUSES = {
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
}
each_code = pytest.mark.parametrize("code", STATUSES)


@asynccontextmanager
async def unsafe(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: ResponseCode
) -> AsyncIterator[Server]:
    async with serving(path) as server:
        play_apache(server)
        store_unsafely(monkeypatch, code)
        yield server


class Listener:
    """Listener that counts its runs."""

    def __init__(self) -> None:
        self.executed = 0

    def execute_local_transaction(self, _message: Message, _arg: object) -> Resolution:
        self.executed += 1
        return Resolution.COMMIT

    def check_local_transaction(self, _message: Received) -> Resolution:
        return Resolution.UNKNOWN


@each_code
async def test_an_ordinary_message_is_sent_and_its_status_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ResponseCode
) -> None:
    async with (
        unsafe(tmp_path, monkeypatch, code) as server,
        AsyncProducer(server.name_address, "pay") as producer,
    ):
        sent = await producer.send("orders", b"1", key="42")
        assert sent.status is STATUSES[code]
        assert sent.queue_offset == 0
        many = await producer.send_many([Message(topic="orders", body=b"2")])
        assert [one.status for one in many] == [STATUSES[code]]
        assert sorted(bodies(server)) == [b"1", b"2"]


async def test_a_message_that_is_stored_safely_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        async with AsyncProducer(server.name_address, "pay") as producer:
            assert (await producer.send("orders", b"1")).status is SendStatus.SEND_OK
        play_apache(server)
        async with AsyncProducer(server.name_address, "pay") as producer:
            assert (await producer.send("orders", b"2")).status is SendStatus.SEND_OK


@each_code
async def test_a_half_message_is_rolled_back_and_no_listener_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ResponseCode
) -> None:
    listener = Listener()
    async with unsafe(tmp_path, monkeypatch, code) as server:

        def work() -> None:
            with (
                Producer(server.name_address, "pay", listener=listener) as producer,
                pytest.raises(Unavailable, match="half_not_safe") as caught,
            ):
                producer.send_in_transaction(Message(topic="orders", body=b"1"))
            assert caught.value.fields["status"] == STATUSES[code]

        await asyncio.to_thread(work)
        assert [half.state for half in halves(server)] == [State.ROLLED_BACK]
        async with AsyncProducer(server.name_address, "pay", listener=listener) as producer:
            with pytest.raises(Unavailable, match="half_not_safe"):
                await producer.send_in_transaction(Message(topic="orders", body=b"2"))
        assert [half.state for half in halves(server)] == [State.ROLLED_BACK] * 2
        assert listener.executed == 0


async def test_begin_and_send_half_raise_and_roll_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ResponseCode.SLAVE_NOT_AVAILABLE
    async with unsafe(tmp_path, monkeypatch, code) as server:

        def work() -> None:
            with Producer(server.name_address, "pay") as producer:
                with pytest.raises(Unavailable, match="half_not_safe"):
                    producer.send_half("orders", b"1")
                with pytest.raises(Unavailable, match="half_not_safe"), producer.begin() as begun:
                    begun.send("orders", b"2")
                caught = producer.begin()
                with suppress(Unavailable):
                    caught.send("orders", b"3")
                assert caught.commit() is None, "there is nothing to commit"

        await asyncio.to_thread(work)
        assert [half.state for half in halves(server)] == [State.ROLLED_BACK] * 3
        async with AsyncProducer(server.name_address, "pay") as producer:
            with pytest.raises(Unavailable, match="half_not_safe"):
                async with producer.begin() as transaction:
                    await transaction.send("orders", b"4")
        assert [half.state for half in halves(server)] == [State.ROLLED_BACK] * 4


async def test_a_rollback_that_is_not_heard_is_left_to_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def roll_back(_message: Received) -> Resolution:
        return Resolution.ROLLBACK

    code, end = ResponseCode.FLUSH_DISK_TIMEOUT, RequestCode.END_TRANSACTION
    async with unsafe(tmp_path, monkeypatch, code) as server:
        handle = server.broker._handlers[end]
        server.broker._handlers[end] = lambda _request: None
        async with AsyncProducer(
            server.name_address, "pay", timeout_s=0.2, checker=roll_back
        ) as producer:
            with pytest.raises(Unavailable, match="half_not_safe"):
                await producer.send_half("orders", b"1")
            assert [half.state for half in halves(server)] == [State.PREPARED]
            server.broker._handlers[end] = handle
            await eventually(lambda: server.broker.clients.producers("pay"))
            check_all(server)
            await eventually(lambda: [half.state for half in halves(server)] == [State.ROLLED_BACK])
