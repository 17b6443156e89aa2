"""The promises of test_blocks.py for async sessions and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiosqlite
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from escrowmq.client.ledger.table import AsyncDatabaseTransaction, SqlLedger, TransactionEnding
from escrowmq.model.errors import OutcomeUnknown
from tests.ledger.async_hands import Opened, commit, connection, driver, place, session
from tests.ledger.shops import (
    COMMITTED,
    GROUP,
    NOW_MS,
    ROLLED_BACK,
    Shop,
    new_id,
    overdue,
    refused,
    unknown,
)

every_hand = pytest.mark.parametrize("opened", [session, connection, driver])


@pytest.fixture
def shop(async_shop: Shop) -> Shop:
    """Return a shop for each async driver."""
    return async_shop


async def begin(shop: Shop, db: object, key: str) -> AsyncDatabaseTransaction:
    transaction = await shop.ledger().transaction_async(
        db, transaction_id=key, producer_group=GROUP
    )
    await transaction.begin(NOW_MS)
    return transaction


@every_hand
async def test_order_and_row_are_committed_together(shop: Shop, opened: Opened) -> None:
    key = new_id()
    async with opened(shop) as db:
        transaction = await begin(shop, db, key)
        assert not transaction.is_commit_owned_by_caller
        transaction.check_outermost()
        await place(db, 1)
        await transaction.insert_row(NOW_MS)
        await transaction.commit()
        await place(db, 2)
        await commit(db)
    assert (shop.orders(), shop.outcomes()) == ({1, 2}, {key: "committed"})


@every_hand
async def test_order_and_row_are_rolled_back_together(shop: Shop, opened: Opened) -> None:
    async with opened(shop) as db:
        transaction = await begin(shop, db, new_id())
        await place(db, 1)
        await transaction.insert_row(NOW_MS)
        await transaction.rollback()
        await commit(db)
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_hand
async def test_a_fenced_transaction_cannot_commit(shop: Shop, opened: Opened) -> None:
    key = new_id()
    async with opened(shop) as db:
        transaction = await begin(shop, db, key)
        if shop.kind == "sqlite":
            shop.fence(key)
        await place(db, 1)
        if shop.kind == "postgresql":
            shop.fence(key)
        with refused("transaction_fenced"):
            await transaction.insert_row(NOW_MS)
        with pytest.raises(Exception):  # noqa: B017, PT011 -- each layer has its own error
            await commit(db)
        with suppress(Exception):
            await place(db, 2)
        with suppress(Exception):
            await commit(db)
    assert (shop.orders(), shop.outcomes()) == (set(), {key: "rolled_back"})


@every_hand
# asyncpg has no method to shadow, so the end of the block detects the commit there.
@pytest.mark.parametrize("async_shop", ["file_shop", "postgres_shop"], indirect=True)
async def test_a_commit_inside_the_block_is_stopped_at_once(shop: Shop, opened: Opened) -> None:
    async with opened(shop) as db:
        transaction = await begin(shop, db, new_id())
        await place(db, 1)
        with refused("transaction_ended_inside"):
            await commit(db)
        await transaction.rollback()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_hand
async def test_a_block_that_sends_nothing_leaves_the_transaction_alone(
    shop: Shop, opened: Opened
) -> None:
    async with opened(shop) as db:
        transaction = await begin(shop, db, new_id())
        await place(db, 1)
        await transaction.release()
        await commit(db)
    assert (shop.orders(), shop.outcomes()) == ({1}, {})


@every_hand
async def test_a_poisoned_transaction_cannot_commit(shop: Shop, opened: Opened) -> None:
    async with opened(shop) as db:
        transaction = await begin(shop, db, new_id())
        await place(db, 1)
        await transaction.poison()
        with pytest.raises(Exception):  # noqa: B017, PT011
            await commit(db)
        await transaction.rollback()
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@asynccontextmanager
async def session_begin(shop: Shop) -> AsyncIterator[Any]:
    async with async_sessionmaker(shop.async_engine()).begin() as found:
        yield found


@asynccontextmanager
async def engine_begin(shop: Shop) -> AsyncIterator[Any]:
    async with shop.async_engine().begin() as found:
        yield found


every_caller = pytest.mark.parametrize("opened", [session_begin, engine_begin])


def take_part(transaction: AsyncDatabaseTransaction, endings: list[TransactionEnding]) -> None:
    async def write() -> None:
        # In real use, half messages go over the network here.
        await asyncio.sleep(0)
        await transaction.insert_row(NOW_MS)

    async def ended(ending: TransactionEnding) -> None:
        await asyncio.sleep(0)
        endings.append(ending)

    transaction.on_before_commit(write)
    transaction.on_ended(ended)


@every_caller
async def test_order_and_row_are_committed_by_the_caller(shop: Shop, opened: Opened) -> None:
    key = new_id()
    endings: list[TransactionEnding] = []
    async with opened(shop) as db:
        transaction = await begin(shop, db, key)
        assert transaction.is_commit_owned_by_caller
        await place(db, 1)
        take_part(transaction, endings)
    assert endings == [TransactionEnding.COMMITTED]
    assert (shop.orders(), shop.outcomes()) == ({1}, {key: "committed"})


@every_caller
async def test_a_rollback_by_the_caller_is_told(shop: Shop, opened: Opened) -> None:
    endings: list[TransactionEnding] = []
    with suppress(KeyError):
        async with opened(shop) as db:
            take_part(await begin(shop, db, new_id()), endings)
            await place(db, 1)
            raise KeyError
    assert endings == [TransactionEnding.ROLLED_BACK]
    assert (shop.orders(), shop.outcomes()) == (set(), {})


@every_caller
async def test_a_fenced_transaction_fails_in_the_callers_commit(shop: Shop, opened: Opened) -> None:
    key = new_id()
    endings: list[TransactionEnding] = []
    with refused("transaction_fenced"):
        async with opened(shop) as db:
            take_part(await begin(shop, db, key), endings)
            if shop.kind == "sqlite":
                shop.fence(key)
            await place(db, 1)
            if shop.kind == "postgresql":
                shop.fence(key)
    assert endings == [TransactionEnding.ROLLED_BACK]
    assert (shop.orders(), shop.outcomes()) == (set(), {key: "rolled_back"})


async def test_a_task_cancelled_while_it_writes_its_row_commits_nothing(
    postgres_shop: Shop,
) -> None:
    key = new_id()
    with postgres_shop.connect() as blocker:
        blocker.execute(f"INSERT INTO escrowmq_ledger VALUES ('{key}', 'x', 'odd', 1)")
        async with driver(postgres_shop) as db:
            transaction = await begin(postgres_shop, db, key)
            await place(db, 1)
            task = asyncio.create_task(transaction.insert_row(NOW_MS))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.05)
            with refused("transaction_poisoned"):
                await db.commit()
            with pytest.raises(psycopg.OperationalError):
                await place(db, 2)
        blocker.rollback()
    assert (postgres_shop.orders(), postgres_shop.outcomes()) == (set(), {})


@every_hand
async def test_a_task_cancelled_in_its_commit_leaves_it_to_the_check(
    async_postgres_shop: Shop, opened: Opened
) -> None:
    key = new_id()
    async_postgres_shop.run(
        "CREATE OR REPLACE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END'"
    )
    async_postgres_shop.run(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    try:
        with async_postgres_shop.connect() as blocker:
            blocker.execute("SELECT pg_advisory_xact_lock(1)")
            async with opened(async_postgres_shop) as db:
                transaction = await begin(async_postgres_shop, db, key)
                await place(db, 1)
                await transaction.insert_row(NOW_MS)
                task = asyncio.create_task(transaction.commit())
                await asyncio.wait([task], timeout=0.05)
                task.cancel()
                with pytest.raises(OutcomeUnknown):
                    await task
    finally:
        async_postgres_shop.run("DROP TRIGGER slow ON orders")
    answer = async_postgres_shop.settle(overdue(key))[key]
    assert (answer, async_postgres_shop.orders()) in [(COMMITTED, {1}), (ROLLED_BACK, set())]


async def test_unusable_databases_and_sessions_are_refused_at_once(shop: Shop) -> None:
    engine = shop.async_engine()
    for thing in (object(), engine, engine.sync_engine):
        with refused("database_unsupported"):
            await begin(shop, thing, new_id())
    with refused("connection_not_started"):
        await begin(shop, engine.connect(), new_id())
    async with AsyncSession(engine) as db, db.begin_nested():
        with refused("savepoint_open"):
            await begin(shop, db, new_id())


async def test_autocommit_and_a_drivers_own_block_are_refused_at_once(
    file_shop: Shop, postgres_shop: Shop
) -> None:
    async with aiosqlite.connect(file_shop.path, isolation_level=None) as file:
        with refused("autocommit_connection"):
            await begin(file_shop, file, new_id())
    connect = psycopg.AsyncConnection.connect
    async with await connect(postgres_shop.url, autocommit=True) as db:
        with refused("autocommit_connection"):
            await begin(postgres_shop, db, new_id())
    async with await connect(postgres_shop.url) as db, db.transaction():
        with refused("commit_not_ours"):
            await begin(postgres_shop, db, new_id())


async def test_a_scoped_session_is_a_session(shop: Shop) -> None:
    scoped = async_scoped_session(async_sessionmaker(shop.async_engine()), asyncio.current_task)
    transaction = await begin(shop, scoped, new_id())
    await place(scoped(), 1)
    await transaction.insert_row(NOW_MS)
    await transaction.commit()
    await scoped.remove()
    assert shop.orders() == {1}


async def test_an_async_ledger_answers_checks(shop: Shop) -> None:
    ledger = SqlLedger(shop.async_engine())
    uuid = await ledger.create_async()
    assert uuid == await ledger.uuid_async() == shop.ledger().uuid()
    early, late = new_id(), new_id()
    assert await ledger.look_up_async([overdue(early)], ledger_uuid=uuid) == {
        early: unknown("absent")
    }
    assert await ledger.resolve_async([overdue(late)], ledger_uuid=uuid, now_ms=NOW_MS) == {
        late: ROLLED_BACK
    }


async def test_a_plain_ledger_can_be_awaited(shop: Shop) -> None:
    ledger = shop.ledger()
    uuid = await ledger.create_async()
    late = new_id()
    assert await ledger.resolve_async([overdue(late)], ledger_uuid=uuid, now_ms=NOW_MS) == {
        late: ROLLED_BACK
    }
