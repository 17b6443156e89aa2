from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from escrowmq.client.config import ProducerConfig
from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.check_answers import Check, Checker
from escrowmq.client.producer.producing import Producing
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.model.resolution import Resolution
from escrowmq.testing import AsyncInProcessBroker, InProcessBroker
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.broker.wire import eventually

ORDERS = "orders"


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@asynccontextmanager
async def producing(address: str, checker: Checker | None = None) -> AsyncIterator[Producing]:
    producer = Producing(address, "shop", ProducerConfig(timeout_s=5.0), checker)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()


def answering(resolution: Resolution) -> Checker:
    async def answer(checks: Sequence[Check]) -> Mapping[str, Resolution]:
        return {check.transaction_id: resolution for check in checks}

    return answer


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


async def test_a_delayed_message_comes_when_the_test_says_so() -> None:
    async with AsyncInProcessBroker() as broker, producing(broker.address) as producer:
        await producer.send(Message(topic=ORDERS, body=b"later", delay_ms=60_000))
        await producer.send(Message(topic=ORDERS, body=b"now"))
        await broker.advance(seconds=59.5)
        assert bodies(await broker.messages(ORDERS)) == [b"now"]
        await broker.advance(seconds=0.5)
        assert bodies(await broker.messages(ORDERS)) == [b"now", b"later"]


@pytest.mark.parametrize(
    ("answer", "seen"),
    [(Resolution.COMMIT, [b"1"]), (Resolution.ROLLBACK, [])],
)
async def test_a_check_asks_the_producer_and_takes_its_answer(
    answer: Resolution, seen: list[bytes]
) -> None:
    async with (
        AsyncInProcessBroker() as broker,
        producing(broker.address, answering(answer)) as producer,
    ):
        held = await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")])
        assert (await broker.run_checks()).waiting == [held.half_offset]
        await broker.advance(seconds=60)
        assert (await broker.run_checks()).asked == [held.half_offset]
        assert bodies(await broker.messages(ORDERS)) == seen
        assert await broker.undecided() == []


async def test_an_answer_that_decides_nothing_is_waited_for_too() -> None:
    async with (
        AsyncInProcessBroker() as broker,
        producing(broker.address, answering(Resolution.UNKNOWN)) as producer,
    ):
        held = await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")])
        await broker.advance(seconds=60)
        await broker.run_checks()
        [half] = await broker.undecided()
        assert (half.half_offset, half.checks_sent) == (held.half_offset, 1)
        await broker.advance(seconds=60)
        assert (await broker.run_checks()).asked == [held.half_offset]


async def test_a_producer_that_says_nothing_fails_the_test() -> None:
    async def hang(_checks: Sequence[Check]) -> Mapping[str, Resolution]:
        await may_end.wait()
        return {}

    may_end = asyncio.Event()
    async with AsyncInProcessBroker() as broker, producing(broker.address, hang) as producer:
        await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")])
        await broker.advance(seconds=60)
        with pytest.raises(Unavailable, match="checks_unanswered"):
            await broker.run_checks(timeout_s=0.05)
        may_end.set()


async def test_days_may_pass_and_clients_are_still_known() -> None:
    async with (
        AsyncInProcessBroker() as broker,
        producing(broker.address, answering(Resolution.COMMIT)) as producer,
    ):
        await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")])
        await broker.advance(seconds=2 * 86_400)
        assert (await broker.run_checks()).no_producer == []
        assert bodies(await broker.messages(ORDERS)) == [b"1"]


async def test_a_ledger_settles_with_no_producer_online(tmp_path: Path) -> None:
    ledger = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}")
    uuid = ledger.create()
    async with AsyncInProcessBroker(ledgers=[ledger]) as broker:
        async with producing(broker.address) as producer:
            await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")], ledger=uuid)
        await broker.advance(seconds=30)
        # Not past its deadline, so the producer may still commit.
        assert len((await broker.run_checks()).waiting) == 1
        await broker.advance(seconds=60)
        assert len((await broker.run_checks()).rolled_back) == 1


async def test_a_ledger_that_the_test_does_not_give_is_left_to_the_producer(
    tmp_path: Path,
) -> None:
    uuid = SqlLedger(f"sqlite:///{tmp_path / 'shop.db'}").create()
    async with (
        AsyncInProcessBroker() as broker,
        producing(broker.address, answering(Resolution.COMMIT)) as producer,
    ):
        await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")], ledger=uuid)
        await broker.advance(seconds=60)
        assert len((await broker.run_checks()).asked) == 1


async def test_stored_messages_are_there_after_a_restart() -> None:
    async with AsyncInProcessBroker() as broker:
        address = broker.address
        async with producing(address) as producer:
            await producer.send(Message(topic=ORDERS, body=b"1"))
            await broker.restart()
            assert broker.address == address
            await producer.send(Message(topic=ORDERS, body=b"2"))
        assert bodies(await broker.messages(ORDERS)) == [b"1", b"2"]


async def test_an_operators_settings_hold() -> None:
    policy = CheckPolicy(check_after_ms=0, checks_max=1)
    async with (
        AsyncInProcessBroker(policy=policy, queue_count=2) as broker,
        producing(broker.address, answering(Resolution.UNKNOWN)) as producer,
    ):
        held = await producer.hold("t-1", [Message(topic=ORDERS, body=b"1")])
        await broker.run_checks()
        await broker.advance(seconds=60)
        assert (await broker.run_checks()).parked == [held.half_offset]


def test_retries_come_and_end_among_the_dead_letters(broker: InProcessBroker) -> None:
    broker.create_topic(ORDERS)
    tries: list[int] = []
    tried = threading.Semaphore(0)
    consumer = Consumer(broker.address, "ship", retries_max=1)

    @consumer.subscribe(ORDERS)
    def ship(message: Received) -> None:
        tries.append(message.retries)
        tried.release()
        raise ValueError("never")

    async def send() -> None:
        async with producing(broker.address) as producer:
            await producer.send(Message(topic=ORDERS, body=b"1"))

    with consumer:
        asyncio.run(send())
        assert tried.acquire(timeout=20)
        asyncio.run(eventually(lambda: broker._running.broker.store.table.end == 1))
        broker.advance(seconds=10)
        assert tried.acquire(timeout=20)
        asyncio.run(eventually(lambda: bodies(broker.dead_letters("ship")) == [b"1"]))
    assert tries == [0, 1]


def test_its_folder_is_gone_afterwards_unless_it_was_given(tmp_path: Path) -> None:
    with InProcessBroker() as broker:
        folder = broker._data
        assert folder is not None
        assert folder.exists()
    assert not folder.exists()
    with InProcessBroker(data=tmp_path):
        pass
    assert (tmp_path / "store").exists()
    with InProcessBroker(data=str(tmp_path / "other")):
        pass
    assert (tmp_path / "other" / "store").exists()


def test_it_answers_only_while_it_runs(broker: InProcessBroker) -> None:
    broker.start()
    broker.stop()
    with pytest.raises(RequestRefused, match="broker_not_started"):
        broker.messages(ORDERS)
