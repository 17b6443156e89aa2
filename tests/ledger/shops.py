"""A shop's database with orders and a ledger in it, and every hand that can write to it."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from escrowmq.client.ledger.table import (
    DatabaseTransaction,
    LedgerAnswer,
    LedgerOutcome,
    Question,
    SqlLedger,
)
from escrowmq.model.errors import EscrowError
from escrowmq.model.lineage import Sight

GROUP = "orders"
NOW_MS = 1_700_000_000_000
LONG_PAST_MS = NOW_MS - 60_000
LONG_TO_COME_MS = NOW_MS + 60_000

COMMITTED = LedgerAnswer(LedgerOutcome.COMMITTED)
ROLLED_BACK = LedgerAnswer(LedgerOutcome.ROLLED_BACK)

_numbers = itertools.count(1)


def unknown(reason: str) -> LedgerAnswer:
    return LedgerAnswer(LedgerOutcome.UNKNOWN, reason)


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    with pytest.raises(EscrowError) as caught:
        yield
    assert caught.value.code in codes


def new_id() -> str:
    return f"transaction-{next(_numbers):06}"


def overdue(transaction_id: str, group: str = GROUP) -> Question:
    return Question(transaction_id, group, LONG_PAST_MS)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)


@dataclass(kw_only=True)
class Shop:
    kind: str
    url: str
    #: The driver of async work on PostgreSQL.
    async_driver: str = "psycopg"
    engines: list[sqlalchemy.Engine] = field(default_factory=list)
    # Tests mostly read; on a server, a new connection for each read would be slow.
    looking: psycopg.Connection[Any] | None = None
    known_ledger: SqlLedger | None = None

    @property
    def sqlalchemy_url(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    @property
    def path(self) -> str:
        return self.url.removeprefix("sqlite:///")

    def engine(self, **options: Any) -> sqlalchemy.Engine:
        # Without a pool: a connection that a thread returns after the test would stay open in it.
        chosen = {"poolclass": sqlalchemy.NullPool, **options}
        engine = sqlalchemy.create_engine(self.sqlalchemy_url, **chosen)
        self.engines.append(engine)
        return engine

    def async_engine(self, **options: Any) -> AsyncEngine:
        url = self.sqlalchemy_url.replace("sqlite://", "sqlite+aiosqlite://")
        url = url.replace("+psycopg", f"+{self.async_driver}")
        chosen = {"poolclass": sqlalchemy.NullPool, **options}
        return create_async_engine(url, **chosen)

    def connect(self, **options: Any) -> Any:
        """Return a connection of the driver itself."""
        if self.kind == "sqlite":
            return sqlite3.connect(self.path, **{"timeout": 5.0, **options})
        return psycopg.connect(self.url, **options)

    def ledger(self) -> SqlLedger:
        if self.known_ledger is None:
            self.known_ledger = SqlLedger(self.url)
        return self.known_ledger

    def settle(
        self, *questions: Question, now_ms: int = NOW_MS, sight: Sight | None = None
    ) -> dict[str, LedgerAnswer]:
        ledger = self.ledger()
        return ledger.resolve(questions, ledger_uuid=ledger.uuid(), now_ms=now_ms, sight=sight)

    def fence(self, transaction_id: str) -> None:
        assert self.settle(overdue(transaction_id)) == {transaction_id: ROLLED_BACK}

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        if self.kind == "postgresql":
            if self.looking is None:
                self.looking = psycopg.connect(self.url, autocommit=True)
            found = self.looking.execute(sql.encode())
            return found.fetchall() if found.description else []
        with closing(self.connect()) as connection:
            cursor = connection.execute(sql)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(rows)

    def orders(self) -> set[int]:
        return {row[0] for row in self.run("SELECT number FROM orders")}

    def outcomes(self) -> dict[str, str]:
        return dict(self.run("SELECT transaction_id, outcome FROM escrowmq_ledger"))

    def set_up(self) -> None:
        self.ledger().create()
        self.run("CREATE TABLE IF NOT EXISTS orders (number integer PRIMARY KEY)")

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()
        if self.looking is not None:
            self.looking.close()


def sqlite_shop(folder: Path, name: str = "shop.db") -> Shop:
    shop = Shop(kind="sqlite", url=f"sqlite:///{folder / name}")
    shop.set_up()
    return shop


@dataclass(kw_only=True)
class Hand:
    """One way to work on a database, with every way it has to commit."""

    db: Any
    execute: Callable[[str], Any]
    commits: dict[str, Callable[[], Any]]

    def place(self, order: int) -> None:
        self.execute(f"INSERT INTO orders (number) VALUES ({order})")


@contextmanager
def session_hand(shop: Shop, **options: Any) -> Iterator[Hand]:
    with sqlalchemy.orm.Session(shop.engine(**options)) as session:
        yield Hand(
            db=session,
            execute=lambda sql: session.execute(sqlalchemy.text(sql)),
            commits={
                "session": session.commit,
                "its transaction": lambda: root_of(session).commit(),
                "its connection": lambda: session.connection().commit(),
                "the driver's": lambda: driver_of(session.connection()).commit(),
                "by hand": lambda: session.connection().exec_driver_sql("COMMIT"),
                "a new begin": lambda: begun(session).commit(),
            },
        )


def root_of(db: Any) -> Any:
    transaction = db.get_transaction()
    assert transaction is not None
    return transaction


def driver_of(connection: sqlalchemy.Connection) -> Any:
    return connection.connection


def begun(db: Any) -> Any:
    return db.begin()


@contextmanager
def connection_hand(shop: Shop, **options: Any) -> Iterator[Hand]:
    with shop.engine(**options).connect() as connection:
        yield Hand(
            db=connection,
            execute=connection.exec_driver_sql,
            commits={
                "connection": connection.commit,
                "its transaction": lambda: root_of(connection).commit(),
                "the driver's": lambda: driver_of(connection).commit(),
                "by hand": lambda: connection.exec_driver_sql("COMMIT"),
                "a new begin": lambda: begun(connection).commit(),
            },
        )


@contextmanager
def driver_hand(shop: Shop, **options: Any) -> Iterator[Hand]:
    connection = shop.connect(**options)
    try:
        yield Hand(
            db=connection,
            execute=connection.execute,
            commits={
                "connection": connection.commit,
                "with": lambda: in_with(connection),
                "by hand": lambda: connection.execute("COMMIT"),
            },
        )
    finally:
        connection.close()


def in_with(connection: Any) -> None:
    with connection:
        connection.execute("SELECT 1")


HANDS = {"session": session_hand, "connection": connection_hand, "driver": driver_hand}


def begin(shop: Shop, db: object, transaction_id: str) -> DatabaseTransaction:
    transaction = shop.ledger().transaction(db, transaction_id=transaction_id, producer_group=GROUP)
    transaction.begin(NOW_MS)
    return transaction


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Poll until it holds; each poll is a query, so the loop needs no pause."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "it never became true"
