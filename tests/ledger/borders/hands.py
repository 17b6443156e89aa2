"""One interface to every driver, sync or async.

A program is written once, as coroutines. With a sync driver they never wait, so ``drive`` runs them
without an event loop.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sqlite3
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import aiosqlite
import asyncpg  # type: ignore[import-untyped]  # it brings no types
import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.ledger.shops import Shop

T = TypeVar("T")
CLOSE_S_MAX = 1.0


class Driver(NamedTuple):
    """A driver, alone or below SQLAlchemy."""

    kind: str
    module: str
    is_async: bool
    is_below_sqlalchemy: bool = False

    @property
    def has_savepoints(self) -> bool:
        """Whether the driver has a call for savepoints; the SQLite drivers have none."""
        return self.is_below_sqlalchemy or self.kind == "postgresql"


_PLAIN = {
    "sqlite3": Driver("sqlite", "sqlite3", is_async=False),
    "aiosqlite": Driver("sqlite", "aiosqlite", is_async=True),
    "psycopg": Driver("postgresql", "psycopg", is_async=False),
    "psycopg-async": Driver("postgresql", "psycopg", is_async=True),
    "asyncpg": Driver("postgresql", "asyncpg", is_async=True),
}
DRIVERS = {
    **_PLAIN,
    **{
        f"sqlalchemy-{name}": driver._replace(is_below_sqlalchemy=True)
        for name, driver in _PLAIN.items()
    },
}


async def done(value: Any) -> Any:
    """Await the value if it is awaitable."""
    return await value if inspect.isawaitable(value) else value


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise AssertionError("a plain driver was awaited")


class Hand:
    """Opens connections of one driver to one shop, and uses them."""

    def __init__(self, driver: Driver, shop: Shop) -> None:
        self.driver = driver
        self._shop = shop
        self._engine: Any = None
        self._kept: Any = None
        #: Connections of aiosqlite. SQLAlchemy forgets one whose cursor was cancelled, and its
        #: transaction keeps the database locked.
        self._below: list[Any] = []

    @asynccontextmanager
    async def entered(self, manager: Any) -> AsyncIterator[Any]:
        """Enter a sync or async context manager, as the driver needs it."""
        if self.driver.is_async:
            async with manager as found:
                yield found
        else:
            with manager as found:
                yield found

    @asynccontextmanager
    async def database(self, grip: str, *, is_callers: bool) -> AsyncIterator[Any]:
        """Yield the object for a block; only SQLAlchemy uses ``grip`` and ``is_callers``."""
        if not self.driver.is_below_sqlalchemy:
            if self._kept is None:
                self._kept = await self._connect()
            yield self._kept
            return
        async with self.entered(self._opened(grip)) as db:
            if is_callers:
                async with self.entered(db.begin()):
                    yield db
            else:
                yield db

    def _opened(self, grip: str) -> Any:
        engine = self._engine = self._engine or self._made_engine()
        if grip == "connection":
            return engine.connect()
        return AsyncSession(engine) if self.driver.is_async else Session(engine)

    def _made_engine(self) -> Any:
        scheme = {"sqlite": "sqlite", "postgresql": "postgresql"}[self.driver.kind]
        name = "pysqlite" if self.driver.module == "sqlite3" else self.driver.module
        _, _, rest = self._shop.url.partition("://")
        make = create_async_engine if self.driver.is_async else sqlalchemy.create_engine
        engine: Any = make(f"{scheme}+{name}://{rest}")
        if self.driver.module == "aiosqlite":
            sqlalchemy.event.listen(
                engine.sync_engine,
                "connect",
                lambda connection, _record: self._below.append(connection.driver_connection),
            )
        return engine

    async def _connect(self) -> Any:
        match self.driver.module, self.driver.is_async:
            case "sqlite3", _:
                return sqlite3.connect(self._shop.path)
            case "aiosqlite", _:
                return await aiosqlite.connect(self._shop.path)
            case "asyncpg", _:
                return await asyncpg.connect(self._shop.url)
            case _, True:
                return await psycopg.AsyncConnection.connect(self._shop.url)
            case _:
                return psycopg.connect(self._shop.url)

    async def execute(self, db: Any, sql: str) -> Any:
        """Execute a statement."""
        said = sqlalchemy.text(sql) if self.driver.is_below_sqlalchemy else sql
        return await done(db.execute(said))

    async def commit(self, db: Any, *, is_statement: bool) -> None:
        """Commit as the user would, bypassing the block."""
        # SQLAlchemy on SQLite does not see such a statement, as the guide says.
        is_unseen = self.driver.is_below_sqlalchemy and self.driver.kind == "sqlite"
        if isinstance(db, asyncpg.Connection) or (is_statement and not is_unseen):
            await self.execute(db, "COMMIT")
        else:
            await done(db.commit())

    def savepoint(self, db: Any, name: str, *, is_by_hand: bool) -> Any:
        """Return a savepoint block, which an error rolls back."""
        if is_by_hand or not self.driver.has_savepoints:
            return self._by_hand(db, name)
        begin = db.begin_nested if self.driver.is_below_sqlalchemy else db.transaction
        return self.entered(begin())

    @asynccontextmanager
    async def _by_hand(self, db: Any, name: str) -> AsyncIterator[None]:
        await self.execute(db, f"SAVEPOINT {name}")
        try:
            yield
        except Exception:
            await self.execute(db, f"ROLLBACK TO SAVEPOINT {name}")
            await self.execute(db, f"RELEASE SAVEPOINT {name}")
            raise
        await self.execute(db, f"RELEASE SAVEPOINT {name}")

    async def forsake(self) -> None:
        """Close the kept connection: after some errors it is unusable."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await done(kept.close())

    async def close(self) -> None:
        """Close all connections."""
        await self.forsake()
        engine, self._engine = self._engine, None
        if engine is not None:
            await done(engine.dispose())
        below, self._below = self._below, []
        for connection in below:
            with suppress(Exception):
                await asyncio.wait_for(connection.close(), CLOSE_S_MAX)
        if below:
            # SQLite keeps the locks of a closed connection until its last cursor is gone.
            gc.collect()
