"""A `with` block refuses an async database, and `async with` a plain one; both name what fits."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from escrowmq import AsyncProducer, Producer, SqlLedger
from escrowmq.model.errors import RequestRefused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    SqlLedger(f"sqlite:///{path}").create()
    return path


def refuses_plainly(path: Path, db: Any) -> str:  # noqa: ANN401
    producer = Producer("127.0.0.1:1", "pay", ledger=SqlLedger(f"sqlite:///{path}"))
    with pytest.raises(RequestRefused, match="database_unsupported") as refused:
        producer.transaction(db).__enter__()
    return str(refused.value)


async def refuses_awaited(path: Path, db: Any) -> str:  # noqa: ANN401
    producer = AsyncProducer("127.0.0.1:1", "pay", ledger=SqlLedger(f"sqlite:///{path}"))
    with pytest.raises(RequestRefused, match="database_unsupported") as refused:
        await producer.transaction(db).__aenter__()
    return str(refused.value)


async def test_a_with_block_names_the_one_for_async_databases(path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with AsyncSession(engine) as session, aiosqlite.connect(path) as connection:
        for db, kind in ((session, "AsyncSession"), (connection, "aiosqlite.core.Connection")):
            told = refuses_plainly(path, db)
            assert "needs `async with` and an AsyncProducer" in told
            assert kind in told
    await engine.dispose()


async def test_an_async_with_block_names_the_one_for_plain_databases(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}")
    with Session(engine) as session, closing(sqlite3.connect(path)) as connection:
        for db, kind in ((session, "orm.session.Session"), (connection, "sqlite3.Connection")):
            told = await refuses_awaited(path, db)
            assert "others need `with` and a Producer" in told
            assert kind in told
    engine.dispose()
