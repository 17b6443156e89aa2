"""The usual test fixture: a session joins a transaction that is rolled back afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from escrowmq.client.consumer.consumer import Consumer
from escrowmq.client.messages.handling import AlreadyConsumed
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import join_test
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, Market, in_thread, market, pay
from tests.ledger.shops import Order, Shop, refused

consumer = Consumer("127.0.0.1:9876", group="shipping")


@contextmanager
def joined(shop: Shop) -> Iterator[Session]:
    """Open a session by the guide's recipe."""
    with shop.engine().connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield join_test(session)
        outer.rollback()


@asynccontextmanager
async def async_joined(shop: Shop) -> AsyncIterator[AsyncSession]:
    engine = shop.async_engine()
    async with engine.connect() as connection, connection.begin() as outer:
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            await session.run_sync(join_test)
            yield session
        await outer.rollback()
    await engine.dispose()


def numbers(session: Session) -> set[int]:
    return set(session.scalars(sqlalchemy.select(Order.number)))


async def test_a_block_commits_for_the_test_and_leaves_nothing_behind(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with joined(shop) as session:
                for number in (1, 2):
                    with producer.transaction(session) as tx:
                        pay(tx, number)
                    assert tx.state == "committed"
                with suppress(KeyError), producer.transaction(session) as tx:
                    pay(tx, 3)
                    raise KeyError
                assert tx.state == "rolled_back"
                assert numbers(session) == there.paid() == {1, 2}

        await in_thread(sell)
        assert (shop.orders(), shop.outcomes()) == (set(), {})


async def test_the_same_where_the_code_under_test_commits(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with joined(shop) as session:
                with session.begin():
                    with producer.transaction(session) as tx:
                        pay(tx, 1)
                    assert tx.state == "open"
                assert tx.state == "committed"
                with suppress(KeyError), session.begin():
                    with producer.transaction(session) as tx:
                        pay(tx, 2)
                    raise KeyError
                assert tx.state == "rolled_back"
                assert numbers(session) == there.paid() == {1}

        await in_thread(sell)
        assert (shop.orders(), shop.outcomes()) == (set(), {})


async def test_savepoints_of_the_code_under_test_keep_their_messages_apart(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer()
            with joined(shop) as session:
                for first in (1, 4):
                    with producer.transaction(session) as tx:
                        pay(tx, first)
                        with suppress(KeyError), session.begin_nested():
                            pay(tx, first + 1)
                            raise KeyError
                        with session.begin_nested():
                            pay(tx, first + 2)
                assert numbers(session) == there.paid() == {1, 3, 4, 6}

        await in_thread(sell)
        assert shop.orders() == set()


def failing(there: Market, session: Session) -> None:
    """Run a block that raises within the caller's transaction; the caller swallows the error."""
    producer = there.producer()
    session.begin()
    with suppress(KeyError), producer.transaction(session) as tx:
        pay(tx, 1)
        session.flush()
        raise KeyError
    with refused("transaction_poisoned"):
        session.commit()
    session.rollback()
    assert tx.state == "rolled_back"


async def test_a_block_that_failed_cannot_be_committed_and_the_test_goes_on(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            with joined(shop) as session:
                failing(there, session)
                assert numbers(session) == set()
                with there.producer().transaction(session) as tx:
                    pay(tx, 2)
                assert numbers(session) == there.paid() == {2}

        await in_thread(sell)
        assert shop.orders() == set()


@pytest.mark.parametrize("is_callers", [False, True])
async def test_a_broker_that_is_away_fails_the_block_and_the_test_goes_on(
    shop: Shop, tmp_path: Path, *, is_callers: bool
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            producer = there.producer(timeout_s=0.5)
            with joined(shop) as session:
                if is_callers:
                    session.begin()
                with there.unanswered(NativeCode.HOLD_MANY), refused("hold_unanswered"):
                    with producer.transaction(session) as tx:
                        pay(tx, 1)
                    session.commit()
                session.rollback()
                assert tx.state == "rolled_back"
                assert numbers(session) == set()

        await in_thread(sell)


async def test_the_same_where_the_session_is_awaited(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there, async_joined(shop) as session:
        producer = there.async_producer()
        async with producer.transaction(session) as tx:
            pay(tx, 1)
            with suppress(KeyError):
                async with session.begin_nested():
                    pay(tx, 2)
                    raise KeyError
        async with session.begin():
            async with producer.transaction(session) as tx:
                pay(tx, 3)
            assert tx.state == "open"
        assert tx.state == "committed"
        assert await session.run_sync(numbers) == there.paid() == {1, 3}
    assert (shop.orders(), shop.outcomes()) == (set(), {})


def test_a_consumers_block_is_recorded_for_the_test(shop: Shop) -> None:
    with joined(shop) as session:
        with consumer.transaction(session, delivery("m-1")):
            session.add(Order(number=1))
        with pytest.raises(AlreadyConsumed), consumer.transaction(session, delivery("m-1")):
            pytest.fail("its effect is there")
        assert numbers(session) == {1}
    assert (shop.orders(), consumed(shop)) == (set(), set())


def test_a_session_that_joins_no_transaction_of_a_test_is_refused(shop: Shop) -> None:
    engine = shop.engine()
    mode = "create_savepoint"
    with engine.connect() as connection, Session(engine) as plain:
        with refused("session_joins_nothing"):
            join_test(plain)
        with (
            Session(connection, join_transaction_mode=mode) as unbegun,  # type: ignore[arg-type]
            refused("session_joins_nothing"),
        ):
            join_test(unbegun)
        connection.begin()
        with Session(connection) as other_mode, refused("session_joins_nothing"):
            join_test(other_mode)


async def test_a_joined_session_is_refused_unless_the_test_allows_it(
    shop: Shop, tmp_path: Path
) -> None:
    async with market(shop, tmp_path) as there:

        def sell() -> None:
            with (
                shop.engine().connect() as connection,
                connection.begin(),
                Session(connection, join_transaction_mode="create_savepoint") as session,
                refused("commit_not_ours"),
                there.producer().transaction(session) as tx,
            ):
                tx.send(PAID, b"1")

        await in_thread(sell)
