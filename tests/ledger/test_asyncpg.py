"""asyncpg: through SQLAlchemy, on its own connection, and on one from its pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it brings no types
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from escrowmq.client.consumer.consumer import AsyncConsumer
from escrowmq.client.ledger.table import SqlLedger
from escrowmq.client.messages.handling import AlreadyConsumed
from escrowmq.client.producer.transaction_steps import TransactionState
from escrowmq.model.errors import OutcomeUnknown
from escrowmq.transaction.states import State
from tests.ledger.async_hands import driver, place
from tests.ledger.deliveries import consumed, delivery
from tests.ledger.market import PAID, market
from tests.ledger.shops import (
    GROUP,
    NOW_MS,
    Shop,
    new_id,
    refused,
)

LEVELS = ["read committed", "repeatable read", "serializable"]
every_level = pytest.mark.parametrize("level", LEVELS)

consumer = AsyncConsumer("127.0.0.1:9876", group="points")


def engine_at(shop: Shop, level: str) -> Any:
    return shop.async_engine(isolation_level=level.upper())


@asynccontextmanager
async def session_at(shop: Shop, level: str) -> AsyncIterator[Any]:
    async with AsyncSession(engine_at(shop, level)) as session:
        yield session


@asynccontextmanager
async def connection_at(shop: Shop, level: str) -> AsyncIterator[Any]:
    async with engine_at(shop, level).connect() as connection:
        yield connection


@asynccontextmanager
async def driver_at(shop: Shop, level: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(
        shop.url, server_settings={"default_transaction_isolation": level}
    )
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def begun_by_hand_at(shop: Shop, level: str) -> AsyncIterator[Any]:
    async with driver(shop) as connection:
        await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        yield connection


@asynccontextmanager
async def lent_at(shop: Shop, level: str) -> AsyncIterator[Any]:
    settings = {"default_transaction_isolation": level}
    async with (
        asyncpg.create_pool(shop.url, min_size=1, max_size=1, server_settings=settings) as pool,
        pool.acquire() as connection,
    ):
        yield connection


OpenedAt = Callable[[Shop, str], AbstractAsyncContextManager[Any]]
HANDS = [session_at, connection_at, driver_at, begun_by_hand_at, lent_at]
every_hand = pytest.mark.parametrize("opened", HANDS)


async def level_of(db: Any) -> str:
    if isinstance(db, AsyncSession):
        db = await db.connection()
    if hasattr(db, "exec_driver_sql"):
        found = await db.exec_driver_sql("SELECT current_setting('transaction_isolation')")
        return str(found.scalar())
    return str(await db.fetchval("SELECT current_setting('transaction_isolation')"))


@every_level
@every_hand
async def test_order_and_message_agree(
    asyncpg_shop: Shop, tmp_path: Path, opened: OpenedAt, level: str
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, opened(asyncpg_shop, level) as db:
        ledger = SqlLedger(engine_at(asyncpg_shop, level))
        producer = there.async_producer(ledger=ledger)
        async with producer.transaction(db) as tx:
            assert await level_of(db) == level
            await place(db, 1)
            tx.send(PAID, b"1")
        assert tx.state is TransactionState.COMMITTED
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(db) as tx:
                await place(db, 2)
                tx.send(PAID, b"2")
                1 / 0  # noqa: B018
        async with producer.transaction(db) as tx:
            await place(db, 3)
        assert tx.state is TransactionState.COMMITTED
        assert there.states() == [State.COMMITTED]
        assert there.paid() == {1}
        assert asyncpg_shop.orders() == {1, 3}
        assert await producer.clean_ledger() == 1
    assert asyncpg_shop.outcomes() == {}


@every_level
@every_hand
async def test_effect_and_consumed_message_agree(
    asyncpg_shop: Shop, opened: OpenedAt, level: str
) -> None:
    async with opened(asyncpg_shop, level) as db:
        with pytest.raises(ZeroDivisionError):
            async with consumer.transaction(db, delivery()):
                await place(db, 1)
                1 / 0  # noqa: B018
        assert consumed(asyncpg_shop) == set()
        async with consumer.transaction(db, delivery()):
            assert consumed(asyncpg_shop) == set()
            await place(db, 2)
        with pytest.raises(AlreadyConsumed):
            async with consumer.transaction(db, delivery()):
                pytest.fail("its effect is there")
        async with consumer.transaction(db, delivery("m-2")):
            await place(db, 3)
    assert (asyncpg_shop.orders(), consumed(asyncpg_shop)) == ({2, 3}, {"m-1", "m-2"})


@every_level
async def test_the_callers_commit_takes_messages_along(
    asyncpg_shop: Shop, tmp_path: Path, level: str
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, session_at(asyncpg_shop, level) as db:
        producer = there.async_producer()
        async with db.begin(), producer.transaction(db) as tx:
            await place(db, 1)
            tx.send(PAID, b"1")
        assert tx.state is TransactionState.COMMITTED
        async with db.begin(), consumer.transaction(db, delivery()):
            await place(db, 2)
        with pytest.raises(AlreadyConsumed):
            async with db.begin(), consumer.transaction(db, delivery()):
                pytest.fail("its effect is there")
        assert (asyncpg_shop.orders(), there.paid()) == ({1, 2}, {1})
        assert consumed(asyncpg_shop) == {"m-1"}


async def test_a_block_inside_asyncpgs_own_is_refused_and_changes_nothing(
    asyncpg_shop: Shop, tmp_path: Path
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, driver(asyncpg_shop) as db:
        producer = there.async_producer()
        async with db.transaction():
            await place(db, 1)
            with refused("commit_not_ours"):
                async with producer.transaction(db):
                    pytest.fail("asyncpg will commit, and it has no hook")
            with refused("commit_not_ours"):
                async with consumer.transaction(db, delivery()):
                    pytest.fail("as above")
            await place(db, 2)
        assert asyncpg_shop.orders() == {1, 2}
        assert (consumed(asyncpg_shop), there.states()) == (set(), [])


async def test_an_engine_in_autocommit_is_refused(asyncpg_shop: Shop) -> None:
    async with asyncpg_shop.async_engine(isolation_level="AUTOCOMMIT").connect() as db:
        transaction = await asyncpg_shop.ledger().transaction_async(
            db, transaction_id=new_id(), producer_group=GROUP
        )
        with refused("autocommit_connection"):
            await transaction.begin(NOW_MS)
        with refused("autocommit_connection"):
            async with consumer.transaction(db, delivery()):
                pytest.fail("each statement would commit by itself")


async def test_a_savepoint_of_asyncpgs_is_possible_inside_the_block(
    asyncpg_shop: Shop, tmp_path: Path
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, driver(asyncpg_shop) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            tx.send(PAID, b"1")
            async with db.transaction():
                await place(db, 1)
            with pytest.raises(asyncpg.UniqueViolationError):
                async with db.transaction():
                    await place(db, 1)
        # The block has left nothing behind, so this transaction is no savepoint.
        async with db.transaction():
            await place(db, 2)
        assert (asyncpg_shop.orders(), there.paid()) == ({1, 2}, {1})


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_a_transaction_that_was_ended_inside_is_found_at_the_end(
    asyncpg_shop: Shop, tmp_path: Path, sql: str
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, driver(asyncpg_shop) as db:
        producer = there.async_producer()
        with refused("transaction_ended_inside"):
            async with producer.transaction(db) as tx:
                await db.execute(sql)
                await place(db, 1)
                tx.send(PAID, b"1")
        assert tx.state is TransactionState.ROLLED_BACK
        assert there.paid() == set()


async def test_a_refusal_at_the_beginning_leaves_no_transaction_open(
    asyncpg_shop: Shop,
) -> None:
    async with driver(asyncpg_shop) as db:
        for is_begun in (False, True):
            if is_begun:
                await db.execute("BEGIN")
            ledger = SqlLedger(asyncpg_shop.url)
            ledger._uuid = "another"
            transaction = await ledger.transaction_async(
                db, transaction_id=new_id(), producer_group=GROUP
            )
            with refused("ledger_differs"):
                await transaction.begin(NOW_MS)
            # A transaction that the user began stays open for the user to end.
            assert db.is_in_transaction() is is_begun
        await db.execute("ROLLBACK")
        async with db.transaction():
            await place(db, 1)
    assert asyncpg_shop.orders() == {1}


async def test_a_task_cancelled_while_it_writes_its_row_commits_nothing(
    asyncpg_shop: Shop,
) -> None:
    key = new_id()
    with asyncpg_shop.connect() as blocker:
        blocker.execute(f"INSERT INTO escrowmq_ledger VALUES ('{key}', 'x', 'odd', 1)")
        async with driver(asyncpg_shop) as db:
            transaction = await asyncpg_shop.ledger().transaction_async(
                db, transaction_id=key, producer_group=GROUP
            )
            await transaction.begin(NOW_MS)
            await place(db, 1)
            task = asyncio.create_task(transaction.insert_row(NOW_MS))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.05)
            assert db.is_closed()
        blocker.rollback()
    assert (asyncpg_shop.orders(), asyncpg_shop.outcomes()) == (set(), {})


async def test_a_connection_that_breaks_in_commit_is_left_to_the_check(
    asyncpg_shop: Shop, tmp_path: Path
) -> None:
    async with market(asyncpg_shop, tmp_path) as there, driver(asyncpg_shop) as db:
        producer = there.async_producer()

        async def sell() -> None:
            async with producer.transaction(db) as tx:
                await place(db, 1)
                tx.send(PAID, b"1")
                pid = await db.fetchval("SELECT pg_backend_pid()")
                database: Any = tx._database
                commit = database._connection.commit

                async def broken() -> None:
                    asyncpg_shop.run(f"SELECT pg_terminate_backend({pid}, 5000)")
                    await commit()

                database._connection.commit = broken

        with pytest.raises(OutcomeUnknown):
            await sell()
        assert there.states() == [State.PREPARED]
        await there.agrees(set())


async def test_a_pool_gets_good_connections_back(asyncpg_shop: Shop, tmp_path: Path) -> None:
    """The pool reuses its connection after a commit and an error, and replaces a poisoned one."""
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, found: problems.append(found))
    async with (
        market(asyncpg_shop, tmp_path) as there,
        asyncpg.create_pool(asyncpg_shop.url, min_size=1, max_size=1) as pool,
    ):
        producer = there.async_producer()

        async def sell(number: int) -> None:
            async with pool.acquire() as db, producer.transaction(db) as tx:
                await place(db, number)
                tx.send(PAID, b"%d" % number)

        await sell(1)
        with pytest.raises(asyncpg.UniqueViolationError):
            await sell(1)
        await sell(2)
        async with pool.acquire() as db:
            transaction = await asyncpg_shop.ledger().transaction_async(
                db, transaction_id=new_id(), producer_group=GROUP
            )
            await transaction.begin(NOW_MS)
            await transaction.poison()
        async with pool.acquire() as db, db.transaction():
            await place(db, 3)
        assert asyncpg_shop.orders() == {1, 2, 3}
        assert there.paid() == {1, 2}
    assert problems == []
