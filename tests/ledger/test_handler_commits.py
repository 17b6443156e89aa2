"""A message is acknowledged only after its handler's transaction has committed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.database.connections import SqliteConnection
from escrowmq.client.messages.body_reading import MessageHandler
from escrowmq.client.messages.handling import HandlerOutcome, HandlerRunner
from escrowmq.client.messages.messages import Received
from escrowmq.client.producer.producer import Producer
from escrowmq.model.errors import OutcomeUnknown
from escrowmq.testing import InProcessBroker
from tests.ledger import async_hands
from tests.ledger.async_hands import place
from tests.ledger.deliveries import TOPIC, consumed, delivery
from tests.ledger.shops import GROUP, Order, Shop, driver_hand

consumer = Consumer("127.0.0.1:9876", group="shipping")
others = AsyncConsumer("127.0.0.1:9876", group="shipping")


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic(TOPIC)
        yield broker


@pytest.fixture
async def handlers() -> AsyncIterator[HandlerRunner]:
    made = HandlerRunner(concurrency=1, timeout_s=20.0)
    yield made
    made.close()


async def outcome(handlers: HandlerRunner, handler: Callable[[Received], Any]) -> HandlerOutcome:
    await handlers.admit()
    return (await handlers.handle(MessageHandler(handler), delivery())).outcome


async def test_a_handler_that_returns_before_its_callers_commit_has_failed(
    shop: Shop, handlers: HandlerRunner
) -> None:
    kept: list[Session] = []

    def never_committed(message: Received) -> None:
        with Session(shop.engine()) as session:
            session.begin()
            with consumer.transaction(session, message):
                session.add(Order(number=1))

    def still_open(message: Received) -> None:
        session = Session(shop.engine())
        session.begin()
        with consumer.transaction(session, message):
            session.add(Order(number=1))
        kept.append(session)

    def rolled_back(message: Received) -> None:
        with Session(shop.engine()) as session, session.begin() as transaction:
            with consumer.transaction(session, message):
                session.add(Order(number=1))
            transaction.rollback()

    def committed(message: Received) -> None:
        with (
            Session(shop.engine()) as session,
            session.begin(),
            consumer.transaction(session, message),
        ):
            session.add(Order(number=1))

    for handler in (never_committed, still_open, rolled_back):
        assert await outcome(handlers, handler) is HandlerOutcome.AGAIN, handler.__name__
        for session in kept:
            session.close()
        assert (shop.orders(), consumed(shop)) == (set(), set())
    assert await outcome(handlers, committed) is HandlerOutcome.DONE
    # Now each block reports at its entry that the effect is there.
    assert await outcome(handlers, never_committed) is HandlerOutcome.DONE
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


async def test_the_same_for_a_block_that_is_never_left(shop: Shop, handlers: HandlerRunner) -> None:
    kept: list[Any] = []

    def entered(message: Received) -> None:
        connection = shop.connect(**({"check_same_thread": False} if is_sqlite else {}))
        kept.append(connection)
        consumer.transaction(connection, message).__enter__()

    is_sqlite = shop.kind == "sqlite"
    assert await outcome(handlers, entered) is HandlerOutcome.AGAIN
    kept[0].close()


async def test_the_same_where_the_database_is_awaited(shop: Shop, handlers: HandlerRunner) -> None:
    async def never_committed(message: Received) -> None:
        async with async_hands.session(shop) as session:
            await session.begin()
            async with others.transaction(session, message):
                await place(session, 1)

    async def committed(message: Received) -> None:
        async with (
            async_hands.session(shop) as session,
            session.begin(),
            others.transaction(session, message),
        ):
            await place(session, 1)

    assert await outcome(handlers, never_committed) is HandlerOutcome.AGAIN
    assert (shop.orders(), consumed(shop)) == (set(), set())
    assert await outcome(handlers, committed) is HandlerOutcome.DONE
    assert (shop.orders(), consumed(shop)) == ({1}, {"m-1"})


async def test_a_handler_that_swallows_an_unknown_outcome_has_failed(
    file_shop: Shop, handlers: HandlerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(message: Received) -> None:
        with (
            driver_hand(file_shop) as hand,
            suppress(OutcomeUnknown),
            consumer.transaction(hand.db, message),
        ):
            hand.place(1)
            monkeypatch.setattr(SqliteConnection, "commit", lost)

    def lost(_connection: SqliteConnection) -> None:
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    assert await outcome(handlers, careless) is HandlerOutcome.AGAIN


async def test_a_handler_may_catch_its_blocks_error_and_return(
    shop: Shop, handlers: HandlerRunner
) -> None:
    def decided(message: Received) -> None:
        with (
            driver_hand(shop) as hand,
            suppress(ValueError),
            consumer.transaction(hand.db, message),
        ):
            hand.place(1)
            raise ValueError("out of stock")

    def tried_again(message: Received) -> None:
        decided(message)
        with driver_hand(shop) as hand, consumer.transaction(hand.db, message):
            hand.place(2)

    assert await outcome(handlers, decided) is HandlerOutcome.DONE
    assert (shop.orders(), consumed(shop)) == (set(), set())
    assert await outcome(handlers, tried_again) is HandlerOutcome.DONE
    assert (shop.orders(), consumed(shop)) == ({2}, {"m-1"})


def test_the_broker_gets_back_what_was_not_committed(
    shop: Shop, broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(broker.address, GROUP) as producer:
        producer.send(TOPIC, b"1")
    service = Consumer(broker.address, group="shipping", retries_max=0)
    handled = threading.Event()

    @service.subscribe(TOPIC)
    def ship(message: Received) -> None:
        with Session(shop.engine()) as session:
            session.begin()
            with service.transaction(session):
                session.add(Order(number=int(message.body)))
        handled.set()

    with service:
        assert handled.wait(20)
    assert (shop.orders(), consumed(shop)) == (set(), set())
    assert [message.body for message in broker.dead_letters("shipping")] == [b"1"]
    assert "handler_uncommitted" in caplog.text


def test_a_loop_that_goes_on_before_the_commit_gets_the_message_back(
    shop: Shop, broker: InProcessBroker
) -> None:
    with Producer(broker.address, GROUP) as producer:
        producer.send(TOPIC, b"1")
        producer.send(TOPIC, b"2")
    with Consumer(broker.address, group="shipping", retries_max=0, concurrency=1) as service:
        messages = service.messages(TOPIC)
        with Session(shop.engine()) as session:
            session.begin()
            with service.transaction(session, next(messages)):
                session.add(Order(number=1))
        with driver_hand(shop) as hand, service.transaction(hand.db, next(messages)):
            hand.place(2)
        messages.close()
    assert shop.orders() == {2}
    assert [message.body for message in broker.dead_letters("shipping")] == [b"1"]
