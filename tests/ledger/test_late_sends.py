"""A message that is added after the block has ended is refused, because it would never be sent."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.ledger.async_hands import ASYNC_HANDS, every_async_shop, place
from tests.ledger.market import PAID, in_thread, market, pay
from tests.ledger.shops import HANDS, Order, Shop, refused


@pytest.mark.parametrize("has_sent", [False, True])
async def test_send_after_the_block_is_refused_while_the_caller_has_not_committed(
    shop: Shop, tmp_path: Path, *, has_sent: bool
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session, session.begin():
                with producer.transaction(session) as tx:
                    if has_sent:
                        pay(tx, 1)
                session.add(Order(number=2))
                with refused("transaction_over"):
                    tx.send(PAID, b"2")
            with refused("transaction_over"):
                tx.send(PAID, b"2")

        await in_thread(sell)
        assert there.paid() == ({1} if has_sent else set())
        assert shop.orders() == there.paid() | {2}


@pytest.mark.parametrize("has_sent", [False, True])
async def test_the_same_where_the_session_is_awaited(
    shop: Shop, tmp_path: Path, *, has_sent: bool
) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        async with AsyncSession(engine) as session, session.begin():
            async with producer.transaction(session) as tx:
                if has_sent:
                    pay(tx, 1)
            with refused("transaction_over"):
                tx.send(PAID, b"2")
        assert shop.orders() == there.paid() == ({1} if has_sent else set())
    await engine.dispose()


@pytest.mark.parametrize("opened", HANDS.values(), ids=HANDS)
async def test_send_after_a_block_that_committed_failed_or_sent_nothing_is_refused(
    shop: Shop, tmp_path: Path, opened: Any
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with opened(shop) as hand:
                with producer.transaction(hand.db) as nothing:
                    hand.place(1)
                with producer.transaction(hand.db) as something:
                    something.send(PAID, b"1")
                with suppress(KeyError), producer.transaction(hand.db) as failed:
                    failed.send(PAID, b"2")
                    raise KeyError
                for tx in (nothing, something, failed):
                    with refused("transaction_over"):
                        tx.send(PAID, b"3")

        await in_thread(sell)
        await there.agrees({1})


async def test_send_after_a_block_that_failed_in_the_callers_transaction_is_refused(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session:
                session.begin()
                with suppress(KeyError), producer.transaction(session) as tx:
                    raise KeyError
                with refused("transaction_over"):
                    tx.send(PAID, b"1")

        await in_thread(sell)
        assert there.paid() == set()


@pytest.mark.parametrize("is_callers", [False, True])
async def test_a_bodys_function_may_still_send(
    shop: Shop, tmp_path: Path, *, is_callers: bool
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with Session(there.engine) as session:
                if is_callers:
                    session.begin()
                with producer.transaction(session) as tx:
                    session.add_all([Order(number=1), Order(number=2)])

                    def body() -> bytes:
                        tx.send(PAID, b"2")
                        return b"1"

                    tx.send(PAID, body)
                if is_callers:
                    session.commit()

        await in_thread(sell)
        await there.agrees({1, 2})


@every_async_shop
@pytest.mark.parametrize("opened", ASYNC_HANDS.values(), ids=ASYNC_HANDS)
async def test_send_after_a_block_that_was_awaited_is_refused(
    shop: Shop, tmp_path: Path, opened: Any
) -> None:
    async with market(shop, tmp_path) as there, opened(shop) as db:
        async with there.async_producer().transaction(db) as tx:
            await place(db, 1)
            tx.send(PAID, b"1")
        with refused("transaction_over"):
            tx.send(PAID, b"2")
        assert shop.orders() == there.paid() == {1}
