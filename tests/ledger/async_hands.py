"""The async hands of a shop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg  # type: ignore[import-untyped]  # it brings no types
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession

from escrowmq.client.ledger.table import AsyncDatabaseTransaction
from tests.ledger.shops import GROUP, NOW_MS, Shop, new_id


@asynccontextmanager
async def session(shop: Shop) -> AsyncIterator[Any]:
    async with AsyncSession(shop.async_engine()) as found:
        yield found


@asynccontextmanager
async def connection(shop: Shop) -> AsyncIterator[Any]:
    async with shop.async_engine().connect() as found:
        yield found


@asynccontextmanager
async def driver(shop: Shop) -> AsyncIterator[Any]:
    opened: Any
    if shop.kind == "sqlite":
        async with aiosqlite.connect(shop.path) as found:
            yield found
    else:
        if shop.async_driver == "asyncpg":
            opened = await asyncpg.connect(shop.url)
        else:
            opened = await psycopg.AsyncConnection.connect(shop.url)
        try:
            yield opened
        finally:
            await opened.close()


Opened = Callable[[Shop], AbstractAsyncContextManager[Any]]
ASYNC_HANDS: dict[str, Opened] = {"session": session, "connection": connection, "driver": driver}


async def place(db: Any, number: int) -> None:
    await run(db, f"INSERT INTO orders VALUES ({number})")


async def run(db: Any, sql: str) -> None:
    is_sqlalchemy = type(db).__module__.startswith("sqlalchemy")
    await db.execute(sqlalchemy.text(sql) if is_sqlalchemy else sql)


async def begun(shop: Shop, db: object) -> AsyncDatabaseTransaction:
    transaction = await shop.ledger().transaction_async(
        db, transaction_id=new_id(), producer_group=GROUP
    )
    await transaction.begin(NOW_MS)
    return transaction


async def commit(db: Any) -> None:
    """Commit as the user would; an asyncpg connection has no commit()."""
    await (db.execute("COMMIT") if isinstance(db, asyncpg.Connection) else db.commit())


every_async_shop = pytest.mark.parametrize(
    "shop", ["sqlite", "postgresql", "asyncpg"], indirect=True
)
