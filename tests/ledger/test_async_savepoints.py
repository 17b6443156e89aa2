"""A message belongs to its savepoint even if the send is not awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession

from escrowmq.client.database import savepoint_marks
from escrowmq.client.database.block import BlockStage, BlockTerms
from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.client.database.psycopg_connections import AsyncPsycopgConnection
from escrowmq.client.database.savepoint_marks import SoonMarks
from escrowmq.client.ledger.producer_block import LedgerBlock, RowFacts
from escrowmq.client.ledger.table import SqlLedger
from tests.ledger.async_hands import ASYNC_HANDS, driver, place
from tests.ledger.market import PAID, market
from tests.ledger.shops import Order, Shop, refused

Savepoint = Callable[[Any], AbstractAsyncContextManager[None]]


async def execute(db: Any, sql: str) -> Any:
    is_sqlalchemy = type(db).__module__.startswith("sqlalchemy")
    return await db.execute(sqlalchemy.text(sql) if is_sqlalchemy else sql)


@asynccontextmanager
async def by_hand(db: Any) -> AsyncIterator[None]:
    await execute(db, "SAVEPOINT mine")
    try:
        yield
    except BaseException:
        await execute(db, "ROLLBACK TO SAVEPOINT mine")
        raise
    finally:
        await execute(db, "RELEASE SAVEPOINT mine")


@asynccontextmanager
async def by_library(db: Any) -> AsyncIterator[None]:
    """Use SQLAlchemy's begin_nested(), or the driver's transaction()."""
    begin = getattr(db, "begin_nested", None) or db.transaction
    async with begin():
        yield


@asynccontextmanager
async def below(db: Any) -> AsyncIterator[None]:
    """Use the driver's own connection, bypassing SQLAlchemy."""
    connection = await db.connection() if isinstance(db, AsyncSession) else db
    raw = await connection.get_raw_connection()
    async with by_hand(raw.driver_connection):
        yield


WAYS = [
    pytest.param(kind, hand, way, id=f"{kind}-{hand}-{way.__name__}")
    for kind in ("file_shop", "postgres_shop", "asyncpg_shop")
    for hand in ASYNC_HANDS
    for way in (by_hand, by_library, below)
    if (kind, hand, way) != ("file_shop", "driver", by_library)
    if (hand, way) != ("driver", below)
]
every_way = pytest.mark.parametrize(("kind", "name", "savepoint"), WAYS)


@pytest.fixture
def chosen(kind: str, request: pytest.FixtureRequest) -> Shop:
    found: Shop = request.getfixturevalue(kind)
    return found


async def send_only(tx: Any, number: int) -> None:
    tx.send(PAID, b"%d" % number)


async def send_first(tx: Any, number: int) -> None:
    tx.send(PAID, b"%d" % number)
    await place(tx.db, number)


async def send_last(tx: Any, number: int) -> None:
    await place(tx.db, number)
    tx.send(PAID, b"%d" % number)


async def send_awaited(tx: Any, number: int) -> None:
    await place(tx.db, number)
    await tx.send_async(PAID, b"%d" % number)


Pay = Callable[[Any, int], Awaitable[None]]


@pytest.mark.parametrize("pay", [send_only, send_first, send_last, send_awaited])
@every_way
async def test_messages_are_rolled_back_with_their_savepoint_and_kept_with_its_release(
    chosen: Shop, tmp_path: Path, name: str, savepoint: Savepoint, pay: Pay
) -> None:
    async with market(chosen, tmp_path) as there, ASYNC_HANDS[name](chosen) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            await pay(tx, 1)
            async with savepoint(db):
                await pay(tx, 2)
            with suppress(KeyError):
                async with savepoint(db):
                    await pay(tx, 3)
                    async with savepoint(db):
                        await pay(tx, 4)
                    raise KeyError
            async with savepoint(db):
                with suppress(KeyError):
                    async with savepoint(db):
                        await pay(tx, 5)
                        raise KeyError
                await pay(tx, 6)
            await pay(tx, 7)
        async with producer.transaction(db) as tx:
            with suppress(KeyError):
                async with savepoint(db):
                    await pay(tx, 8)
                    raise KeyError
            await pay(tx, 9)
        await there.settled()
        assert there.paid() == {1, 2, 6, 7, 9}
        assert chosen.orders() == (there.paid() if pay is not send_only else set())


@every_way
async def test_a_block_whose_messages_were_all_rolled_back_just_commits(
    chosen: Shop, tmp_path: Path, name: str, savepoint: Savepoint
) -> None:
    async with market(chosen, tmp_path) as there, ASYNC_HANDS[name](chosen) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            await place(db, 1)
            with suppress(KeyError):
                async with savepoint(db):
                    tx.send(PAID, b"2")
                    raise KeyError
        assert tx.state == "committed"
        assert (chosen.orders(), there.paid(), there.states()) == ({1}, set(), [])


async def test_the_same_where_the_caller_commits(shop: Shop, tmp_path: Path) -> None:
    engine = shop.async_engine()
    async with market(shop, tmp_path) as there:
        producer = there.async_producer()
        for first in (1, None):
            async with (
                AsyncSession(engine) as session,
                session.begin(),
                producer.transaction(session) as tx,
            ):
                if first:
                    session.add(Order(number=first))
                    tx.send(PAID, b"%d" % first)
                with suppress(KeyError):
                    async with session.begin_nested():
                        session.add(Order(number=2))
                        tx.send(PAID, b"2")
                        raise KeyError
        await there.agrees({1})
    await engine.dispose()


async def test_sends_with_no_statement_after_them_write_no_mark(shop: Shop, tmp_path: Path) -> None:
    async with market(shop, tmp_path) as there, driver(shop) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            await place(db, 1)
            tx.send(PAID, b"1")
            tx.send(PAID, b"1")
        kept = "sqlite_temp_master" if shop.kind == "sqlite" else "pg_tables WHERE false"
        found = await execute(db, f"SELECT count(*) FROM {kept}")
        assert (await found.fetchone())[0] == 0
        # The block has restored the connection.
        assert not {"wait", "_execute", "commit"} & set(vars(db))
        await db.rollback()
        await there.agrees({1})


async def test_a_transaction_that_failed_in_a_savepoint_takes_its_messages(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there, driver(postgres_shop) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            await place(db, 1)
            tx.send(PAID, b"1")
            with suppress(psycopg.errors.UniqueViolation):
                async with db.transaction():
                    tx.send(PAID, b"2")
                    try:
                        await place(db, 1)
                    finally:
                        # The transaction is aborted, so a mark can no longer be written.
                        tx.send(PAID, b"3")
        await there.agrees({1})


async def test_messages_in_a_pipeline_keep_their_place(postgres_shop: Shop, tmp_path: Path) -> None:
    async with market(postgres_shop, tmp_path) as there, driver(postgres_shop) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx, db.pipeline():
            for number in (1, 2):
                await db.execute("SAVEPOINT mine")
                tx.send(PAID, b"%d" % number)
                await place(db, number)
                if number == 1:
                    await db.execute("ROLLBACK TO SAVEPOINT mine")
        await there.agrees({2})


async def test_a_message_sent_while_copying_keeps_its_place(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there, driver(postgres_shop) as db:
        producer = there.async_producer()
        async with producer.transaction(db) as tx:
            for number in (1, 2):
                with suppress(KeyError):
                    async with db.transaction():
                        copying = db.cursor().copy("COPY orders FROM STDIN")
                        async with copying as copy:
                            tx.send(PAID, b"%d" % number)
                            await copy.write(b"%d\n" % number)
                        if number == 1:
                            raise KeyError
        await there.agrees({2})


async def test_a_mark_that_was_cancelled_refuses_the_block(
    postgres_shop: Shop, tmp_path: Path
) -> None:
    async with market(postgres_shop, tmp_path) as there, driver(postgres_shop) as db:
        producer = there.async_producer()
        with refused("send_not_marked"):
            async with producer.transaction(db) as tx:
                await db.execute("SAVEPOINT mine")
                tx.send(PAID, b"1")
                task = asyncio.ensure_future(place(db, 1))
                await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                await db.execute("ROLLBACK TO SAVEPOINT mine")
        assert postgres_shop.orders() == there.paid() == set()


async def test_a_driver_that_cannot_be_watched_needs_the_awaited_send(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoint_marks, "_method_of", lambda _connection: "")
    async with market(shop, tmp_path) as there, driver(shop) as db:
        producer = there.async_producer()
        with refused("send_not_marked"):
            async with producer.transaction(db) as tx:
                await place(db, 1)
                tx.send(PAID, b"1")
        async with producer.transaction(db) as tx:
            with suppress(KeyError):
                async with by_hand(db):
                    await place(db, 2)
                    await tx.send_async(PAID, b"2")
                    raise KeyError
            await place(db, 3)
            await tx.send_async(PAID, b"3")
        without = there.async_producer(ledger=SqlLedger(shop.url, savepoints=False))
        async with without.transaction(db) as tx:
            await place(db, 4)
            tx.send(PAID, b"4")
        await there.agrees({3, 4})


async def test_asyncpgs_marks_are_written_before_its_next_statement(postgres_shop: Shop) -> None:
    asyncpg = import_module("asyncpg")
    connection = await asyncpg.connect(postgres_shop.url)
    terms = BlockTerms(AsyncPsycopgConnection(connection), has_hooks=True, max_duration_ms=1_000)
    block = LedgerBlock(terms, RowFacts("transaction-1", "orders", "uuid"))
    block.stage = BlockStage.OPEN
    soon = SoonMarks(connection, block, POSTGRESQL)
    protocol = connection._protocol
    try:
        async with connection.transaction():
            soon.add(1)
            for number in (2, 3):
                with suppress(KeyError):
                    async with connection.transaction():
                        soon.add(number)
                        if number == 2:
                            raise KeyError
            with suppress(asyncpg.DivisionByZeroError):
                async with connection.transaction():
                    soon.add(4)
                    try:
                        await connection.fetch("SELECT 1 / $1::integer", 0)
                    finally:
                        # The transaction is aborted, so a mark can no longer be written.
                        soon.add(5)
            statement = await connection.prepare("SELECT $1::integer")
            await connection.execute("SAVEPOINT mine")
            soon.add(6)
            assert await statement.fetchval(6) == 6
            await connection.execute("ROLLBACK TO SAVEPOINT mine")
            soon.add(7)
            soon.add(8)
            assert await statement.fetchval(7) == 7
            soon.add(9)
            found = await connection.fetchval("SELECT current_setting('escrowmq.sent')")
            assert found == "1,3,7,8,9,"
            assert connection._protocol is protocol
            soon.add(10)
            soon.take()
            assert connection._protocol is protocol
    finally:
        await connection.close()
