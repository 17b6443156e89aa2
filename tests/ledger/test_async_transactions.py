"""The async with block: the same order of steps, and cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession

from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import OutcomeUnknown, Unavailable
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.transaction.states import State
from tests.ledger.async_hands import driver
from tests.ledger.market import PAID, id_of, market, pay
from tests.ledger.shops import Order, Shop, refused
from tests.unit.broker.wire import eventually


@pytest.fixture
def shop(async_shop: Shop) -> Shop:
    """Return a shop for each async driver."""
    return async_shop


async def test_order_and_message_are_there_together(shop: Shop, tmp_path: Path) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer(ledger=SqlLedger(engine))
        async with producer.transaction(AsyncSession(engine)) as tx:
            pay(tx, 1)
            order = Order(number=2)
            tx.db.add(order)
            tx.send(PAID, lambda: id_of(order))
        assert tx.state is TransactionState.COMMITTED
        assert shop.orders() == there.paid() == {1, 2}
        assert await producer.clean_ledger() == 1
    await engine.dispose()


async def test_an_error_takes_both_back_and_a_block_without_messages_commits(
    shop: Shop, tmp_path: Path
) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(AsyncSession(engine)) as tx:
                pay(tx, 1)
                1 / 0  # noqa: B018
        async with producer.transaction(AsyncSession(engine)) as tx:
            tx.db.add(Order(number=2))
        assert shop.orders() == {2}
        assert there.states() == []
    await engine.dispose()


async def test_the_callers_commit_takes_the_messages_along(shop: Shop, tmp_path: Path) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        async with AsyncSession(engine) as session, session.begin():
            async with producer.transaction(session) as tx:
                pay(tx, 1)
            states = [tx.state]
        states.append(tx.state)
        assert states == [TransactionState.OPEN, TransactionState.COMMITTED]
        async with engine.begin() as connection, producer.transaction(connection) as tx_2:
            await connection.execute(sqlalchemy.insert(Order).values(number=2))
            tx_2.send(PAID, b"2")
        with pytest.raises(ZeroDivisionError):
            async with AsyncSession(engine) as session, session.begin():
                async with producer.transaction(session) as tx:
                    pay(tx, 3)
                1 / 0  # noqa: B018
        assert tx.state is TransactionState.ROLLED_BACK
        assert shop.orders() == there.paid() == {1, 2}
    await engine.dispose()


async def test_a_drivers_own_connection_will_do(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        async with driver(shop) as connection, producer.transaction(connection) as tx:
            await connection.execute("INSERT INTO orders (number) VALUES (1)")
            tx.send(PAID, b"1")
        assert shop.orders() == there.paid() == {1}


async def test_a_cancel_before_commit_rolls_back(shop: Shop, tmp_path: Path) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer(timeout_s=0.5)
        await producer.start()

        async def sell() -> None:
            async with producer.transaction(AsyncSession(engine)) as tx:
                pay(tx, 1)

        with there.unanswered(NativeCode.HOLD_MANY), there.listening() as heard:
            selling = asyncio.ensure_future(sell())
            await eventually(lambda: NativeCode.HOLD_MANY in heard)
            selling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await selling
        assert shop.orders() == there.paid() == set()
    await engine.dispose()


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_cancel_during_commit_is_left_to_the_check(
    shop: Shop, tmp_path: Path, *, is_committed: bool
) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()

        async def sell() -> None:
            async with producer.transaction(AsyncSession(engine)) as tx:
                pay(tx, 1)
                database: Any = tx._database
                connection = database.inner._connection
                commit = connection.commit

                def interrupted() -> None:
                    if is_committed:
                        commit()
                    raise asyncio.CancelledError

                connection.commit = interrupted

        with pytest.raises(OutcomeUnknown):
            await sell()
        assert there.states() == [State.PREPARED]
        await there.agrees({1} if is_committed else set())
    await engine.dispose()


async def test_a_cancel_after_commit_lets_the_decision_go_on(shop: Shop, tmp_path: Path) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer(timeout_s=0.5)

        async def sell() -> None:
            async with producer.transaction(AsyncSession(engine)) as tx:
                pay(tx, 1)

        with there.unanswered(NativeCode.DECIDE_MANY), there.listening() as heard:
            selling = asyncio.ensure_future(sell())
            await eventually(lambda: NativeCode.DECIDE_MANY in heard)
            selling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await selling
        await there.agrees({1})
    await engine.dispose()


async def test_an_async_producer_belongs_to_one_loop(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        await producer.send(PAID, b"1")

        def elsewhere() -> None:
            with refused("other_loop"):
                asyncio.run(producer.send(PAID, b"2"))

        await asyncio.to_thread(elsewhere)
        await producer.close()
        with pytest.raises(Unavailable, match="client_closed"):
            await producer.send(PAID)
        assert there.paid() == {1}
