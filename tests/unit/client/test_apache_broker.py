"""Our broker understands the stock requests that the SDK sends to Apache's brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.broker.server import Server
from escrowmq.client.config import ProducerConfig
from escrowmq.client.messages.messages import Message, received
from escrowmq.client.producer.apache_broker import ApacheBroker
from escrowmq.client.producer.check_answers import Check
from escrowmq.client.producer.producing import Producing
from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.stored_message import StoredMessage
from escrowmq.transaction.commands import Verdict, VerdictKind
from escrowmq.transaction.states import State
from tests.unit.broker.wire import eventually, serving, visible


class Answering:
    """Checker that answers COMMIT and keeps the transaction ids that it was asked about."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def __call__(self, checks: Sequence[Check]) -> Mapping[str, Resolution]:
        self.ids += [check.transaction_id for check in checks]
        return dict.fromkeys(self.ids, Resolution.COMMIT)


@asynccontextmanager
async def producing(server: Server, checker: Answering | None = None) -> AsyncIterator[Producing]:
    """Run a producer that takes the broker for one of Apache's."""
    producer = Producing(server.name_address, "pay", ProducerConfig(), checker)
    address = server.broker_address
    producer._brokers[address] = ApacheBroker(producer.network, address)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()


async def test_a_check_and_a_consumer_get_the_transactions_id_and_not_the_messages(
    tmp_path: Path,
) -> None:
    """Apache's broker overwrites the transaction's id with the message's id."""
    answering = Answering()
    async with serving(tmp_path) as server, producing(server, answering) as producer:
        message = Message(topic="orders", body=b"1", key="k")
        held = await producer.hold("transaction-1", [message], ledger="a-ledger")
        assert held.transaction_id == "transaction-1"
        await eventually(lambda: server.broker.clients.producers("pay"))
        ask = Verdict(
            half_offset=held.half_offset, kind=VerdictKind.ASK, state=State.PREPARED, checks_sent=0
        )
        server.broker.checking.obey([ask], lambda _outcomes: None)
        await eventually(lambda: _visible(server))
        assert answering.ids == ["transaction-1"]
        (stored,) = _visible(server)
        assert stored.properties.count(b"__transactionId__\x01" + message.message_id.encode()) == 1
        assert received(stored, "broker").transaction_id == "transaction-1"


async def test_a_transaction_is_decided_as_it_was_held(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        out = await producer.hold("out", [Message(topic="orders", body=b"out")])
        back = await producer.hold("back", [Message(topic="orders", body=b"back")])
        assert (await producer.decide(back, Resolution.ROLLBACK)).state == "rolled_back"
        assert (await producer.decide(out, Resolution.COMMIT)).state == "committed"
        assert [one.body for one in _visible(server)] == [b"out"]


async def test_messages_that_such_a_broker_cannot_hold_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, producing(server) as producer:
        one, two = Message(topic="orders"), Message(topic="orders")
        with pytest.raises(RequestRefused, match="one_message_per_transaction"):
            await producer.hold("two", [one, two])
        with pytest.raises(RequestRefused, match="one_message_per_transaction"):
            await producer.hold("second", [two], number=1)
        with pytest.raises(RequestRefused, match="delay_in_transaction"):
            await producer.hold("late", [Message(topic="orders", delay_ms=1)])


def _visible(server: Server) -> list[StoredMessage]:
    return [one for queue in range(8) for one in visible(server, "orders", queue)]
