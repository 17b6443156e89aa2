"""Consume, write and produce in one database transaction: every hand, both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sqlalchemy.orm import Session

from escrowmq.client.database import block as database_block
from escrowmq.client.producer.producer import AsyncProducer, Producer
from escrowmq.client.producer.transaction import SendingBlock
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.testing import InProcessBroker
from tests.ledger.async_hands import every_async_shop, place
from tests.ledger.chains import (
    SHIPPED,
    AsyncOpened,
    Opened,
    async_chaining,
    chaining,
    consumer,
    every_async_way,
    every_way,
    failing,
    known,
    rows,
    shipped,
)
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.shops import GROUP, Order, Shop


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic(SHIPPED)
        yield broker


@pytest.fixture
def producer(shop: Shop, broker: InProcessBroker) -> Iterator[Producer]:
    with Producer(broker.address, GROUP, ledger=shop.ledger()) as made:
        yield made


@pytest.fixture
async def async_producer(shop: Shop, broker: InProcessBroker) -> AsyncIterator[AsyncProducer]:
    async with AsyncProducer(broker.address, GROUP, ledger=shop.ledger()) as made:
        yield made


@every_way
def test_a_message_is_consumed_and_another_sent_in_one_transaction(
    shop: Shop, broker: InProcessBroker, producer: Producer, opened: Opened
) -> None:
    with failing(), chaining(shop, producer, opened) as (hand, tx):
        hand.place(1)
        tx.send(SHIPPED, b"1")
        raise ValueError("not now")
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])
    with chaining(shop, producer, opened) as (hand, tx):
        assert (tx.db, tx.message) == (hand.db, delivery())
        hand.place(1)
        tx.send(SHIPPED, b"1")
        assert shipped(broker) == []
    assert tx.state is TransactionState.COMMITTED
    assert (shop.orders(), consumed(shop), shipped(broker)) == ({1}, {"m-1"}, [1])
    assert list(shop.outcomes().values()) == ["committed"]
    with known(), chaining(shop, producer, opened):
        pytest.fail("its effect is there")
    assert (shop.orders(), consumed(shop), shipped(broker)) == ({1}, {"m-1"}, [1])
    assert not broker.undecided()


@every_async_shop
@every_async_way
async def test_the_same_where_the_database_is_awaited(
    shop: Shop, broker: InProcessBroker, async_producer: AsyncProducer, opened: AsyncOpened
) -> None:
    with failing():
        async with async_chaining(shop, async_producer, opened) as tx:
            await place(tx.db, 1)
            tx.send(SHIPPED, b"1")
            raise ValueError("not now")
    assert (shop.orders(), rows(shop), shipped(broker)) == (set(), 0, [])
    async with async_chaining(shop, async_producer, opened) as tx:
        await place(tx.db, 1)
        tx.send(SHIPPED, b"1")
        assert shipped(broker) == []
    assert tx.state is TransactionState.COMMITTED
    assert (shop.orders(), consumed(shop), shipped(broker)) == ({1}, {"m-1"}, [1])
    with known():
        async with async_chaining(shop, async_producer, opened):
            pytest.fail("its effect is there")
    assert (shop.orders(), shipped(broker), broker.undecided()) == ({1}, [1], [])


@every_way
def test_a_block_that_sends_nothing_leaves_no_row_in_the_ledger(
    shop: Shop, broker: InProcessBroker, producer: Producer, opened: Opened
) -> None:
    with chaining(shop, producer, opened) as (hand, tx):
        hand.place(1)
    assert tx.state is TransactionState.COMMITTED
    assert (shop.orders(), consumed(shop), shop.outcomes()) == ({1}, {"m-1"}, {})
    assert not broker.undecided()


def test_a_body_may_tell_what_the_flush_has_written(
    shop: Shop, broker: InProcessBroker, producer: Producer
) -> None:
    with (
        Session(shop.engine()) as session,
        consumer.transaction(session, delivery(), producer=producer) as tx,
    ):
        order = Order(number=1)
        session.add(order)
        tx.send(SHIPPED, lambda: str(order.number))
    assert (shop.orders(), shipped(broker)) == ({1}, [1])


ORDER = {
    "INSERT INTO escrowmq_consumed": "the consumed row",
    "HOLD": "the halves",
    "UPDATE escrowmq_consumed SET": "the consumed row, finished",
    "INSERT INTO escrowmq_ledger": "the ledger's row",
    "COMMIT": "the commit",
    "DECIDE": "the decision",
}


@every_way
def test_the_ledgers_row_is_the_last_statement_and_the_halves_come_before_it(
    shop: Shop, producer: Producer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    perform, perform_order = database_block.perform, SendingBlock._perform

    def performed(step: Any, connection: Any) -> Any:
        done.append(" ".join(step.sql.split()[:3]) if hasattr(step, "sql") else step.name)
        return perform(step, connection)

    def performed_order(block: Any, step: Any) -> Any:
        done.append(step.name)
        return perform_order(block, step)

    monkeypatch.setattr(database_block, "perform", performed)
    monkeypatch.setattr(SendingBlock, "_perform", performed_order)
    with chaining(shop, producer, opened) as (hand, tx):
        hand.place(1)
        tx.send(SHIPPED, b"1")
    in_order = dict.fromkeys(ORDER[word] for word in done if word in ORDER)
    assert list(in_order) == list(ORDER.values())
