"""A service in the middle of a chain: it consumes, writes and sends, through every hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import AsyncConsumer, Consumer
from escrowmq.client.messages.handling import AlreadyConsumed
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.testing import InProcessBroker
from tests.ledger import async_hands
from tests.ledger.async_hands import ASYNC_HANDS
from tests.ledger.deliveries import delivery
from tests.ledger.shops import HANDS, Hand, Shop, driver_hand

SHIPPED = "order-shipped"

consumer = Consumer("127.0.0.1:9876", group="shipping")
others = AsyncConsumer("127.0.0.1:9876", group="shipping")

Opened = Callable[[Shop], AbstractContextManager[Hand]]
AsyncOpened = Callable[[Shop], AbstractAsyncContextManager[Any]]


@contextmanager
def a_callers_session(shop: Shop) -> Iterator[Hand]:
    with Session(shop.engine()) as session, session.begin():
        yield Hand(db=session, execute=session.connection().exec_driver_sql, commits={})


@contextmanager
def a_callers_connection(shop: Shop) -> Iterator[Hand]:
    with shop.engine().begin() as connection:
        yield Hand(db=connection, execute=connection.exec_driver_sql, commits={})


@asynccontextmanager
async def an_awaited_callers_session(shop: Shop) -> AsyncIterator[Any]:
    async with async_hands.session(shop) as session, session.begin():
        yield session


@asynccontextmanager
async def an_awaited_callers_connection(shop: Shop) -> AsyncIterator[Any]:
    async with shop.async_engine().begin() as connection:
        yield connection


#: Each way to work on a database; in the last two the caller commits.
WAYS: dict[str, Opened] = {
    **HANDS,
    "caller's session": a_callers_session,
    "caller's connection": a_callers_connection,
}
ASYNC_WAYS: dict[str, AsyncOpened] = {
    **ASYNC_HANDS,
    "caller's session": an_awaited_callers_session,
    "caller's connection": an_awaited_callers_connection,
}
every_way = pytest.mark.parametrize("opened", WAYS.values(), ids=WAYS)
every_async_way = pytest.mark.parametrize("opened", ASYNC_WAYS.values(), ids=ASYNC_WAYS)


@contextmanager
def chaining(
    shop: Shop, producer: Producer, opened: Opened = driver_hand
) -> Iterator[tuple[Hand, Any]]:
    """Run the block and its commit; yield the hand that writes and the transaction that sends."""
    with (
        opened(shop) as hand,
        consumer.transaction(hand.db, delivery(), producer=producer) as tx,
    ):
        yield hand, tx


@asynccontextmanager
async def async_chaining(
    shop: Shop, producer: AsyncProducer, opened: AsyncOpened
) -> AsyncIterator[Any]:
    """Do the same for async hands."""
    async with (
        opened(shop) as db,
        others.transaction(db, delivery(), producer=producer) as tx,
    ):
        yield tx


def shipped(broker: InProcessBroker) -> list[int]:
    return [int(message.body) for message in broker.messages(SHIPPED)]


def rows(shop: Shop) -> int:
    """Return the count of consumed rows, finished or not."""
    return len(shop.run("SELECT 1 FROM escrowmq_consumed"))


def known() -> AbstractContextManager[Any]:
    return pytest.raises(AlreadyConsumed, match="m-1")


def failing() -> AbstractContextManager[Any]:
    return pytest.raises(ValueError, match="not now")
