"""A session commits several engines one by one, but a block takes part in only one connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.model.errors import EscrowError
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, Market, in_thread, market
from tests.ledger.shops import Order, Shop, refused, sqlite_shop

consumer = Consumer("127.0.0.1:9876", group="shipping")


class Base(DeclarativeBase):
    pass


class Stock(Base):
    """A table in another database than the orders."""

    __tablename__ = "stock"

    number: Mapped[int] = mapped_column(primary_key=True)


@contextmanager
def stock_of(folder: Path) -> Iterator[Shop]:
    other = sqlite_shop(folder, "stock.db")
    other.run("CREATE TABLE stock (number integer PRIMARY KEY)")
    yield other
    other.close()


def session_of(there: Market, other: Shop) -> Session:
    return Session(there.engine, binds={Stock: other.engine()})


def in_stock(other: Shop) -> set[int]:
    return {row[0] for row in other.run("SELECT number FROM stock")}


async def test_a_second_engine_is_refused_when_it_joins_the_block(
    shop: Shop, tmp_path: Path
) -> None:
    with stock_of(tmp_path) as other:
        async with market(shop, tmp_path) as there:

            def sell() -> None:
                producer = there.producer()
                with session_of(there, other) as session:
                    with refused("several_connections"), producer.transaction(session) as tx:
                        session.add(Order(number=1))
                        tx.send(PAID, b"1")
                        session.execute(sqlalchemy.insert(Stock).values(number=1))
                    session.rollback()
                    # Without the other engine, the session is usable.
                    with producer.transaction(session) as tx:
                        session.add(Order(number=2))
                        tx.send(PAID, b"2")

            await in_thread(sell)
            await there.agrees({2})
        assert in_stock(other) == set()


@pytest.mark.parametrize("is_swallowed", [False, True])
async def test_a_second_engine_that_only_the_last_flush_needs_stops_the_commit(
    shop: Shop, tmp_path: Path, *, is_swallowed: bool
) -> None:
    with stock_of(tmp_path) as other:
        async with market(shop, tmp_path) as there:

            def sell() -> None:
                producer = there.producer()
                with (
                    session_of(there, other) as session,
                    refused("several_connections"),
                    producer.transaction(session) as tx,
                ):
                    session.add(Order(number=1))
                    tx.send(PAID, b"1")
                    if is_swallowed:
                        with suppress(EscrowError):
                            session.connection(bind_arguments={"mapper": Stock})
                    else:
                        session.add(Stock(number=1))

            await in_thread(sell)
            assert shop.orders() == there.paid() == set()
        assert in_stock(other) == set()


async def test_a_second_engine_stops_the_callers_commit(shop: Shop, tmp_path: Path) -> None:
    with stock_of(tmp_path) as other:
        async with market(shop, tmp_path) as there:

            def sell() -> None:
                producer = there.producer()
                with (
                    refused("several_connections"),
                    session_of(there, other) as session,
                    session.begin(),
                ):
                    with producer.transaction(session) as tx:
                        session.add(Order(number=1))
                        tx.send(PAID, b"1")
                    session.add(Stock(number=1))

            await in_thread(sell)
            assert shop.orders() == there.paid() == set()
        assert in_stock(other) == set()


async def test_a_session_that_already_uses_two_engines_is_refused_at_once(
    shop: Shop, tmp_path: Path
) -> None:
    with stock_of(tmp_path) as other:
        async with market(shop, tmp_path) as there:

            def sell() -> None:
                producer = there.producer()
                with session_of(there, other) as session:
                    session.add(Stock(number=1))
                    session.flush()
                    for block in (
                        producer.transaction(session),
                        consumer.transaction(session, delivery("m-1")),
                    ):
                        with refused("several_connections"), block:
                            pytest.fail("it would commit two databases, one after the other")
                    session.commit()

            await in_thread(sell)
            assert shop.orders() == there.paid() == set()
        assert (in_stock(other), consumed(shop)) == ({1}, set())


async def test_a_session_without_an_engine_of_its_own_is_refused(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with (
                Session(binds={Order: there.engine}) as session,
                refused("several_connections"),
                producer.transaction(session),
            ):
                pytest.fail("which of its engines is the ledger's is unknown")

        await in_thread(sell)


async def test_the_same_where_the_session_is_awaited(shop: Shop, tmp_path: Path) -> None:
    with stock_of(tmp_path) as other:
        orders, stock = shop.async_engine(), other.async_engine()
        async with market(shop, tmp_path) as there:
            producer = there.async_producer()
            binds: dict[Any, Any] = {Stock: stock}
            async with AsyncSession(orders, binds=binds) as session:
                with refused("several_connections"):
                    async with producer.transaction(session) as tx:
                        session.add(Order(number=1))
                        session.add(Stock(number=1))
                        tx.send(PAID, b"1")
            assert shop.orders() == there.paid() == set()
        assert in_stock(other) == set()
        await orders.dispose()
        await stock.dispose()
