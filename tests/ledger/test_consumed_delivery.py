"""One effect, however often a real broker delivers the message."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.messages import Message, Received
from escrowmq.client.producer.producer import Producer
from escrowmq.testing import InProcessBroker
from tests.ledger.async_hands import place, session
from tests.ledger.deliveries import TOPIC, consumed
from tests.ledger.shops import Shop, driver_hand, eventually


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic(TOPIC, queues=2)
        yield broker


def send(broker: InProcessBroker, *messages: Message) -> None:
    with Producer(broker.address, group="orders") as producer:
        producer.send_many(messages)


def booking(consumer: Consumer, shop: Shop, entered: threading.Semaphore) -> Callable[..., None]:
    """Return a handler that books each order, and fails after its commit on the first delivery."""

    def book(message: Received) -> None:
        entered.release()
        with driver_hand(shop) as hand, consumer.transaction(hand.db):
            hand.place(int(message.body))
        if message.retries == 0:
            raise ValueError("after the commit")

    return book


def test_a_redelivery_is_acknowledged_without_a_second_effect(
    shop: Shop, broker: InProcessBroker
) -> None:
    send(broker, Message(topic=TOPIC, body=b"1"))
    consumer, entered = Consumer(broker.address, group="shipping"), threading.Semaphore(0)
    consumer.subscribe(TOPIC)(booking(consumer, shop, entered))
    with consumer:
        assert entered.acquire(timeout=20)
        retry = "%RETRY%shipping"
        # The broker has the message back, and time passes.
        eventually(lambda: broker._running.broker.store.table.end == 1)
        broker.advance(seconds=60)
        assert entered.acquire(timeout=20)
    assert (shop.orders(), len(consumed(shop))) == ({1}, 1)
    assert broker.lag(TOPIC, "shipping") == broker.lag(retry, "shipping") == 0
    assert broker.dead_letters("shipping") == []


def reads_one_queue(consumer: Consumer) -> bool:
    assert consumer._core is not None
    core = consumer._core._core
    return core is not None and [one.topic for one in core.places].count(TOPIC) == 1


def test_a_message_that_two_consumers_get_at_a_time_has_one_effect(
    shop: Shop, broker: InProcessBroker
) -> None:
    both = threading.Barrier(2)
    consumers = [Consumer(broker.address, group="shipping") for _ in range(2)]
    ends: list[str] = []

    def handler(consumer: Consumer) -> Callable[[Received], None]:
        def book(message: Received) -> None:
            if message.retries == 0:
                both.wait(20)
            try:
                with driver_hand(shop) as hand, consumer.transaction(hand.db):
                    hand.place(int(message.body))
            finally:
                ends.append(consumer.group)

        return book

    for consumer in consumers:
        consumer.subscribe(TOPIC)(handler(consumer))
    with consumers[0], consumers[1]:
        eventually(lambda: all(reads_one_queue(consumer) for consumer in consumers))
        # Like a sender that got no answer and sent again: one message id, in two queues.
        send(broker, *[Message(topic=TOPIC, body=b"1", message_id="m-1") for _ in range(2)])
        eventually(lambda: len(ends) >= 2)
    assert {message.queue_id for message in broker.messages(TOPIC)} == {0, 1}
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


DYING = """
import os, sqlite3, sys, threading
from escrowmq.client.consumer.consumer import Consumer

address, kind, url = sys.argv[1:]
consumer = Consumer(address, group="shipping")

@consumer.subscribe("order-paid")
def book(message):
    if kind == "sqlite":
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        import psycopg
        connection = psycopg.connect(url)
    with consumer.transaction(connection):
        connection.execute("INSERT INTO orders (number) VALUES (1)")
    os._exit(9)

consumer.start()
threading.Event().wait(30)
"""


def test_a_crash_between_the_commit_and_the_acknowledgement(
    shop: Shop, broker: InProcessBroker
) -> None:
    send(broker, Message(topic=TOPIC, body=b"1"))
    died = subprocess.run(
        [sys.executable, "-c", DYING, broker.address, shop.kind, shop.url],
        env=os.environ,
        timeout=60,
        check=False,
    )
    assert died.returncode == 9
    assert (shop.orders(), len(consumed(shop))) == ({1}, 1)
    assert broker.lag(TOPIC, "shipping") == 1

    consumer, entered = Consumer(broker.address, group="shipping"), threading.Semaphore(0)
    consumer.subscribe(TOPIC)(booking(consumer, shop, entered))
    with consumer:
        assert entered.acquire(timeout=30)
    assert (shop.orders(), len(consumed(shop))) == ({1}, 1)
    assert broker.lag(TOPIC, "shipping") == 0


async def test_an_async_handler_has_one_effect_too(shop: Shop, broker: InProcessBroker) -> None:
    await asyncio.to_thread(send, broker, Message(topic=TOPIC, body=b"1", message_id="m-1"))
    await asyncio.to_thread(send, broker, Message(topic=TOPIC, body=b"1", message_id="m-1"))
    consumer = AsyncConsumer(broker.address, group="shipping", concurrency=1)
    handled = asyncio.Semaphore(0)

    @consumer.subscribe(TOPIC)
    async def book(message: Received) -> None:
        try:
            async with session(shop) as db, consumer.transaction(db) as tx:
                await place(tx.db, int(message.body))
        finally:
            handled.release()

    async with consumer, asyncio.timeout(20):
        await handled.acquire()
        await handled.acquire()
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})
    assert await asyncio.to_thread(broker.lag, TOPIC, "shipping") == 0
