"""A check that raises answers UNKNOWN with the error's text, and the broker keeps the text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.check_answers import REMARK_CHARS_MAX, Check, remark_of
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.headers import TransactionHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader
from escrowmq.transaction.states import State
from tests.unit.broker.native_peer import all_rows
from tests.unit.broker.wire import Peer, eventually, serving
from tests.unit.client.test_execute_remark import ends
from tests.unit.client.test_producer import check_all, halves
from tests.unit.client.test_producing import producing


async def remarks(server: Server) -> list[str]:
    """Wait for answers about the first transaction, and return their remarks."""
    peer = await Peer.to(server.broker_address)
    asked = TransactionHeader(half_offset=0)

    async def answered() -> list[str]:
        rows = await all_rows(peer, NativeCode.LIFE_LINE, asked)
        return [row.detail for row in rows if row.event == "answered"]

    async with asyncio.timeout(10):
        while not (found := await answered()):  # noqa: ASYNC110 - the broker sets no event for a test
            await asyncio.sleep(0.005)
    return found


class Listener:
    def execute_local_transaction(self, _message: Message, _arg: object) -> None:
        return None

    def check_local_transaction(self, message: Received) -> Resolution:
        raise LookupError(f"no table for {message.body!r}")


async def test_the_error_of_a_listeners_check_is_kept_by_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        producer = Producer(server.name_address, "pay", listener=Listener())
        await asyncio.to_thread(
            producer.send_in_transaction, Message(topic="orders", body=b"1"), None
        )
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        assert await remarks(server) == ["check 1: LookupError: no table for b'1'"]
        assert [half.state for half in halves(server)] == [State.PREPARED]
        await asyncio.to_thread(producer.close)


@pytest.mark.parametrize(
    ("answer", "bits"), [(Resolution.UNKNOWN, 0), (Resolution.COMMIT, 8), (Resolution.ROLLBACK, 12)]
)
async def test_an_answer_says_that_it_is_one_and_has_the_flag_of_rocketmq(
    tmp_path: Path, answer: Resolution, bits: int
) -> None:
    def told(_message: Received) -> Resolution:
        return answer

    async with serving(tmp_path) as server:
        async with AsyncProducer(server.name_address, "pay", checker=told) as producer:
            await producer.send_half("orders", b"1")
            await eventually(lambda: server.broker.clients.producers("pay"))
            with ends(server) as frames:
                check_all(server)
                await eventually(lambda: frames)
        header = read_header(EndTransactionHeader, frames[0].ext)
        assert (header.is_check_answer, header.resolution_bits) == (True, bits)


async def test_the_error_of_an_async_check_is_kept_by_the_broker(tmp_path: Path) -> None:
    async def check(_message: Received) -> Resolution:
        raise LookupError("no table")

    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay", checker=check) as producer,
    ):
        await producer.send_half("orders", b"1")
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        assert await remarks(server) == ["check 1: LookupError: no table"]


async def test_a_check_that_knows_nothing_brings_no_remark(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        AsyncProducer(server.name_address, "pay", checker=lambda _: None) as producer,
    ):
        await producer.send_half("orders", b"1")
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        assert await remarks(server) == ["check 1"]


async def test_the_error_of_many_checks_at_once_is_told_of_each(tmp_path: Path) -> None:
    async def check(_checks: Sequence[Check]) -> Mapping[str, Any]:
        raise LookupError("no table")

    async with serving(tmp_path) as server, producing(server, check) as producer:
        await producer.hold("t", [Message(topic="orders", body=b"1")])
        await eventually(lambda: server.broker.clients.producers("pay"))
        check_all(server)
        assert await remarks(server) == ["check 1: LookupError: no table"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "remark"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (ValueError(), "ValueError"),
        (ValueError("\udcff"), "ValueError: ?"),
        (ValueError("x" * 5_000), "ValueError: " + "x" * (REMARK_CHARS_MAX - 12)),
    ],
)
def test_a_remark_is_what_can_be_sent_of_an_error(error: Exception, remark: str) -> None:
    assert remark_of(error) == remark


def test_an_error_that_cannot_be_printed_has_a_remark() -> None:
    assert "Unprintable" in remark_of(Unprintable())
