"""The ledger: a small table in the user's database with one row for each transaction.

The row is written in the user's own transaction, so it exists if and only if that transaction
committed. Any program that can reach the database can then tell the outcome, without the user's
code and without a producer online. ``docs/adr/0012-the-ledger-table.md`` has the rules and their
reasons. Importing this module imports no database driver.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, Unpack

from escrowmq.client.database.block import MAX_DURATION_MS, BlockRow
from escrowmq.client.database.connections import DatabaseConnection
from escrowmq.client.database.databases import Opener, is_async_engine, opener_of, reading, writing
from escrowmq.client.database.ledger_sql import FORGET_UUID, ddl_statements
from escrowmq.client.database.transactions import (
    AsyncDatabaseTransaction,
    DatabaseTransaction,
    TransactionEnding,
    async_transaction_on,
    transaction_on,
)
from escrowmq.client.ledger import checks, janitor
from escrowmq.client.ledger.checks import Answers, Asking, LedgerAnswer, Question
from escrowmq.client.ledger.janitor import Confirm, Confirmed
from escrowmq.client.ledger.marks import read_ledger, read_version, stated_version
from escrowmq.client.ledger.producer_block import RowFacts, unreadable
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome

__all__ = [
    "AsyncDatabaseTransaction",
    "DatabaseTransaction",
    "LedgerAnswer",
    "LedgerOutcome",
    "Migrated",
    "Question",
    "SqlLedger",
    "TransactionEnding",
    "create",
    "ddl",
]

#: Lock timeout when a program starts. A back-check waits less, because it is repeated.
START_WAIT_MS = 10_000

#: How long a sweep waits for the broker's answer about one page of rows.
BROKER_WAIT_S = 60.0

T = TypeVar("T")
AsyncConfirm = Callable[[Sequence[str]], Coroutine[Any, Any, Confirmed]]
"""Async form of janitor.Confirm."""

RowOf = Callable[[RowFacts], BlockRow]
"""Returns what a block writes, given the ledger row."""


def _ledger_row_alone(row: RowFacts) -> BlockRow:
    return row


def ddl(dialect: str) -> str:
    """Return the statements that create the tables, for your own migration.

    ``dialect`` is ``sqlite`` or ``postgresql``. A second run changes nothing.

    Raises:
        RequestRefused: ``database_unsupported``.
    """
    return "".join(f"{statement};\n" for statement in ddl_statements(dialect))


def create(database: object) -> str:
    """Create missing tables; return the ledger's UUID.

    ``database`` is the argument of SqlLedger.
    """
    return SqlLedger(database).create()


class Migrated(NamedTuple):
    """Result of a migration to the current version of the tables."""

    uuid: str
    version_before: int
    version: int


class SqlLedger:
    """A ledger in an SQL database.

    ``database`` is a URL (``sqlite:///orders.db``, ``postgresql://…`` for psycopg,
    ``postgresql+asyncpg://…``), a SQLAlchemy engine, sync or async, or a function that opens a
    sqlite3 or psycopg connection.

    With ``savepoints``, a message belongs to the savepoint in which it was sent. That costs one
    statement per message. Without it, no savepoint may be rolled back after a message was sent in
    it.
    """

    def __init__(
        self, database: object, *, max_duration_ms: int = MAX_DURATION_MS, savepoints: bool = True
    ) -> None:
        self.savepoints = savepoints
        self._is_awaited = is_async_engine(database)
        # SQLAlchemy's bridge lets sync code use the sync engine inside an async one.
        self._database: Any = database.sync_engine if self._is_awaited else database  # type: ignore[attr-defined]
        self._opener = opener_of(self._database)
        self._max_duration_ms = max_duration_ms
        self._uuid: str | None = None

    def create(self) -> str:
        """Create missing tables; return the ledger's UUID."""
        return _create(self._waited_for(opener_of(self._database, may_make_file=True)))

    async def create_async(self) -> str:
        """Create missing tables; return the ledger's UUID."""
        opener = opener_of(self._database, may_make_file=True)
        return await self._run(lambda _opener: _create(opener))

    def migrate(self) -> Migrated:
        """Update the tables to the current version; unlike ``create``, never create a ledger."""
        return _migrate(self._waited_for(self._opener))

    async def migrate_async(self) -> Migrated:
        """Update the tables to the current version; unlike ``create``, never create a ledger."""
        return await self._run(_migrate)

    def uuid(self) -> str:
        """Return the UUID that half messages will name; it is read once from the database."""
        if self._uuid is None:
            self._uuid = _read_uuid(self._waited_for(self._opener))
        return self._uuid

    async def uuid_async(self) -> str:
        """Return the UUID that half messages will name; it is read once from the database."""
        if self._uuid is None:
            self._uuid = await self._run(_read_uuid)
        return self._uuid

    def transaction(
        self,
        database: object,
        *,
        transaction_id: str,
        producer_group: str,
        row_of: RowOf = _ledger_row_alone,
    ) -> DatabaseTransaction:
        """Join the transaction of a sync session or connection."""
        row = row_of(RowFacts(transaction_id, producer_group, self.uuid()))
        return transaction_on(database, row, max_duration_ms=self._max_duration_ms)

    async def transaction_async(
        self,
        database: object,
        *,
        transaction_id: str,
        producer_group: str,
        row_of: RowOf = _ledger_row_alone,
    ) -> AsyncDatabaseTransaction:
        """Join the transaction of an async session or connection."""
        row = row_of(RowFacts(transaction_id, producer_group, await self.uuid_async()))
        return async_transaction_on(database, row, max_duration_ms=self._max_duration_ms)

    def look_up(self, questions: Iterable[Question], *, ledger_uuid: str) -> Answers:
        """Read the outcomes of transactions; ``ledger_uuid`` is the one in their half messages."""
        return checks.look_up(self._waited_for(self._opener), questions, ledger_uuid=ledger_uuid)

    async def look_up_async(self, questions: Iterable[Question], *, ledger_uuid: str) -> Answers:
        """Read the outcomes of transactions."""
        asked = list(questions)
        return await self._run(
            lambda opener: checks.look_up(opener, asked, ledger_uuid=ledger_uuid)
        )

    def resolve(self, questions: Iterable[Question], **asking: Unpack[Asking]) -> Answers:
        """Read, and fence off what is absent past its deadline; ``now_ms`` is the broker's time.

        ``sight`` is the broker's history, taken before the questions were read.
        """
        return checks.resolve(self._waited_for(self._opener), questions, **asking)

    def foresee(self, questions: Iterable[Question], **asking: Unpack[Asking]) -> Answers:
        """Read as ``resolve`` does; answer ROLLED_BACK instead of writing a fence."""
        return checks.resolve(self._waited_for(self._opener), questions, is_foreseen=True, **asking)

    async def resolve_async(
        self, questions: Iterable[Question], **asking: Unpack[Asking]
    ) -> Answers:
        """Read, and fence off what is absent past its deadline."""
        asked = list(questions)
        return await self._run(lambda opener: checks.resolve(opener, asked, **asking))

    def settle(self, questions: Iterable[Question], **asking: Unpack[Asking]) -> Answers:
        """Call ``resolve``; the old name goes away with the release after 0.2."""
        warnings.warn("settle is called resolve now", DeprecationWarning, stacklevel=2)
        return self.resolve(questions, **asking)

    async def settle_async(
        self, questions: Iterable[Question], **asking: Unpack[Asking]
    ) -> Answers:
        """Call ``resolve_async``; the old name goes away with the release after 0.2."""
        warnings.warn("settle_async is called resolve_async now", DeprecationWarning, stacklevel=2)
        return await self.resolve_async(questions, **asking)

    def sweep(self, confirm: Confirm) -> int:
        """Delete rows whose transactions brokers confirm as durably decided; return how many."""
        return janitor.sweep(self._waited_for(self._opener), confirm, ledger_uuid=self.uuid())

    async def sweep_async(self, confirm: AsyncConfirm) -> int:
        """Delete rows whose transactions are durably decided; ``confirm`` runs on this loop."""
        ledger_uuid = await self.uuid_async()
        loop = asyncio.get_running_loop()

        def ask(ids: Sequence[str]) -> Confirmed:
            if self._is_awaited:
                from sqlalchemy.util import await_only

                return await_only(confirm(ids))
            return asyncio.run_coroutine_threadsafe(confirm(ids), loop).result(BROKER_WAIT_S)

        return await self._run(lambda opener: janitor.sweep(opener, ask, ledger_uuid=ledger_uuid))

    def forget_consumed(self, before_ms: int) -> int:
        """Delete the records of messages that were consumed before this time; return how many.

        A message delivered again after that is not recognized.
        """
        return janitor.forget_consumed(self._waited_for(self._opener), before_ms)

    async def forget_consumed_async(self, before_ms: int) -> int:
        """Delete the records of messages that were consumed before this time; return how many."""
        return await self._run(lambda opener: janitor.forget_consumed(opener, before_ms))

    async def _run(self, work: Callable[[Opener], T]) -> T:
        """Run the work in a thread or, for an async engine, in SQLAlchemy's bridge."""
        if not self._is_awaited:
            return await asyncio.to_thread(work, self._opener)
        from sqlalchemy.util import greenlet_spawn

        return await greenlet_spawn(work, self._opener)

    def _waited_for(self, opener: Opener) -> Opener:
        if self._is_awaited:
            raise RequestRefused(
                "ledger_needs_await", "its engine is async: use the _async methods"
            )
        return opener


def _create(opener: Opener) -> str:
    with opener() as connection, writing(connection, START_WAIT_MS):
        _begin_making(connection)
        return _made(connection)


def _migrate(opener: Opener) -> Migrated:
    with telling_faults(), opener() as connection, writing(connection, START_WAIT_MS):
        _begin_making(connection)
        if not connection.execute(connection.dialect.has_rows_table).rows:
            raise RequestRefused(
                "ledger_missing", "make a ledger with SqlLedger(…).create(), or restore its table"
            )
        uuid_of(connection)
        before = stated_version(connection)
        # Run them even if the version is current: a migration tool may have stopped half-way.
        return Migrated(_made(connection), before.version, read_version(connection).version)


def _begin_making(connection: DatabaseConnection) -> None:
    """Lock out concurrent creation of the tables, and refuse tables of a newer release."""
    for statement in connection.dialect.exclude:
        connection.execute(statement)
    stated_version(connection)


def _made(connection: DatabaseConnection) -> str:
    """Run every statement that creates or updates the tables; return the ledger's UUID."""
    making = ddl_statements(connection.dialect.name)
    if not connection.execute(connection.dialect.has_rows_table).rows:
        # If the rows are lost, this is a new ledger: under the old UUID, each lost row would count
        # as a transaction that never committed, and would be fenced off.
        making += [FORGET_UUID, *making]
    for statement in making:
        connection.execute(statement)
    return uuid_of(connection)


def _read_uuid(opener: Opener) -> str:
    with telling_faults(), opener() as connection, reading(connection, START_WAIT_MS):
        found = uuid_of(connection)
        read_version(connection)
        return found


@contextmanager
def telling_faults() -> Iterator[None]:
    """Turn a driver's error into an EscrowError."""
    try:
        yield
    except (EscrowError, ImportError):
        raise
    except Exception as error:
        raise unreadable(error) from error


def uuid_of(connection: DatabaseConnection) -> str:
    """Read the ledger's UUID. Call it inside a transaction."""
    return read_ledger(connection)[0]
