"""SQLite through SQLAlchemy: its driver begins late, and some pools share one connection."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, in_thread, market
from tests.ledger.shops import HANDS, Order, Shop, new_id, refused

consumer = Consumer("127.0.0.1:9876", group="shipping")


@pytest.mark.parametrize("name", ["session", "connection"])
async def test_a_savepoint_before_the_first_write_does_not_commit(
    file_shop: Shop, tmp_path: Path, name: str
) -> None:
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with HANDS[name](file_shop) as hand:
                with suppress(KeyError), producer.transaction(hand.db) as tx:
                    with hand.db.begin_nested():
                        hand.place(1)
                    tx.send(PAID, b"1")
                    raise KeyError
                with suppress(KeyError), producer.transaction(hand.db) as tx:
                    # SQLAlchemy does not see a savepoint by hand.
                    hand.execute("SAVEPOINT mine")
                    hand.place(2)
                    hand.execute("RELEASE SAVEPOINT mine")
                    tx.send(PAID, b"2")
                    raise KeyError

        await in_thread(sell)
        assert file_shop.orders() == there.paid() == set()


async def test_the_same_where_the_caller_commits(file_shop: Shop, tmp_path: Path) -> None:
    async with market(file_shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with suppress(KeyError), Session(there.engine) as session, session.begin():
                with producer.transaction(session) as tx:
                    tx.send(PAID, b"1")
                with session.begin_nested():
                    session.add(Order(number=1))
                raise KeyError

        await in_thread(sell)
        assert file_shop.orders() == there.paid() == set()


async def test_the_same_where_the_session_is_awaited(file_shop: Shop, tmp_path: Path) -> None:
    engine = file_shop.async_engine()
    async with market(file_shop, tmp_path) as there:
        producer = there.async_producer()
        with suppress(KeyError):
            async with AsyncSession(engine) as session, producer.transaction(session) as tx:
                async with session.begin_nested():
                    session.add(Order(number=1))
                tx.send(PAID, b"1")
                raise KeyError
        assert file_shop.orders() == there.paid() == set()
    await engine.dispose()


def test_the_same_in_a_consumers_block(file_shop: Shop) -> None:
    with (
        HANDS["session"](file_shop) as hand,
        suppress(KeyError),
        consumer.transaction(hand.db, delivery("m-1")),
    ):
        with hand.db.begin_nested():
            hand.place(1)
        raise KeyError
    assert (file_shop.orders(), consumed(file_shop)) == (set(), set())


SHARING = [sqlalchemy.StaticPool, sqlalchemy.SingletonThreadPool]


@pytest.mark.parametrize("pool", SHARING)
def test_a_pool_that_shares_one_connection_is_refused(shop: Shop, pool: Any) -> None:
    engine = shop.engine(poolclass=pool)
    with Session(engine) as session:
        session.add(Order(number=1))
        session.flush()
        with refused("pool_shares_connection"):
            SqlLedger(engine).create()
        session.rollback()
    engine.dispose()
    assert shop.orders() == set()


def test_an_async_engine_that_shares_one_connection_is_refused(file_shop: Shop) -> None:
    url = file_shop.url.replace("sqlite://", "sqlite+aiosqlite://")
    engine = create_async_engine(url, poolclass=sqlalchemy.StaticPool)
    with refused("pool_shares_connection"):
        SqlLedger(engine)
    with refused("pool_shares_connection"):
        SqlLedger(create_async_engine("sqlite+aiosqlite://"))


class OneForAll(sqlalchemy.Pool):
    """A user's pool that gives all callers one connection."""

    _one: Any = None

    def _do_get(self) -> Any:
        self._one = self._one or self._create_connection()
        return self._one

    def _do_return_conn(self, record: Any) -> None:
        pass

    def dispose(self) -> None:
        if self._one is not None:
            self._one.close()

    def recreate(self) -> OneForAll:
        return self


def test_a_connection_that_is_in_a_block_is_not_used_for_the_ledgers_own_transactions(
    shop: Shop,
) -> None:
    engine = shop.engine(poolclass=OneForAll)
    ledger = SqlLedger(engine)
    ledger.uuid()
    with Session(engine) as session:
        transaction = ledger.transaction(session, transaction_id=new_id(), producer_group="orders")
        transaction.begin(0)
        session.add(Order(number=1))
        session.flush()
        with refused("pool_shares_connection"):
            ledger.create()
        transaction.rollback()
    assert shop.orders() == set()
