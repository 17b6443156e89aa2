"""Marks that tell which messages of a block survived their savepoints.

A savepoint made by hand is invisible to the SDK. So each message leaves a mark in the user's own
transaction: a rollback to a savepoint removes the marks that were made after it, together with the
rows. At the end of the block, the messages that still have their mark are sent.

PostgreSQL keeps the marks in a setting that is local to the transaction, SQLite in a temporary
table of the connection. Neither needs a table in the user's database, takes a lock, or is visible
to another transaction (``docs/adr/0022-messages-belong-to-their-savepoint.md``).
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.client.database.connections import Result, is_a
from escrowmq.client.database.ledger_sql import POSTGRESQL, Dialect
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.database.block import DatabaseBlock, Steps

Statement = tuple[str, tuple[str, ...]]

_PG_MARKS = "coalesce(current_setting('escrowmq.sent', true), '')"
_PG_MARK = f"SELECT set_config('escrowmq.sent', {_PG_MARKS} || CAST(? AS text), true)"
_PG_READ = f"SELECT {_PG_MARKS}"
_PG_FORGET = "SELECT set_config('escrowmq.sent', '', true)"

# Created each time, because a rollback to a savepoint may have removed the table.
_SQLITE_TABLE = "CREATE TEMP TABLE IF NOT EXISTS escrowmq_marker (number integer PRIMARY KEY)"
_SQLITE_MARK = "INSERT INTO temp.escrowmq_marker VALUES "
_SQLITE_READ = "SELECT number FROM temp.escrowmq_marker"
_SQLITE_FORGET = "DELETE FROM temp.escrowmq_marker"


def marking(dialect: Dialect, numbers: Iterable[int]) -> list[Statement]:
    """Return the statements that mark messages."""
    if dialect is POSTGRESQL:
        return [(_PG_MARK, ("".join(f"{number}," for number in numbers),))]
    # Values, not json_each(): that belongs to the main database and would begin a read there. In
    # WAL mode the user's first write would then fail if another connection has committed since.
    values = ",".join(f"({number:d})" for number in numbers)
    return [(_SQLITE_TABLE, ()), (_SQLITE_MARK + values, ())]


def reading(dialect: Dialect) -> list[Statement]:
    """Return the statements that read the marks; the last one returns them."""
    return [(_PG_READ, ())] if dialect is POSTGRESQL else [(_SQLITE_TABLE, ()), (_SQLITE_READ, ())]


def forgetting(dialect: Dialect) -> Statement:
    """Return the statement that deletes all marks."""
    return (_PG_FORGET if dialect is POSTGRESQL else _SQLITE_FORGET), ()


def numbers_in(dialect: Dialect, found: Result) -> frozenset[int]:
    """Return the numbers of the messages whose marks were read."""
    if dialect is POSTGRESQL:
        return frozenset(map(int, found.rows[0][0].split(",")[:-1]))
    return frozenset(row[0] for row in found.rows)


class SoonMarks:
    """Marks to be written; on an async connection, just before its next statement.

    An async block's ``tx.send`` cannot await. Only statements change savepoints, so a mark that is
    written before the next statement is in the right savepoint. If no statement follows, no mark is
    needed.
    """

    def __init__(self, connection: object, block: DatabaseBlock, dialect: Dialect) -> None:
        # asyncpg's pool wraps the connection.
        self._connection: Any = getattr(connection, "_con", connection)
        self._block = block
        self._dialect = dialect
        self._numbers: list[int] = []
        self._is_any_lost = False
        self._method = _method_of(self._connection)
        self._protocol: Any = None

    def add(self, number: int) -> None:
        """Schedule a mark for the next statement."""
        self._block.check_open()
        self._numbers.append(number)
        if self._method == "wait":
            self._connection.wait = self._before_psycopg
        elif self._method == "_execute":
            self._connection._execute = self._before_aiosqlite  # noqa: SLF001
        elif self._method == "_protocol" and self._protocol is None:
            self._protocol = self._connection._protocol  # noqa: SLF001
            self._connection._protocol = _WatchedProtocol(  # noqa: SLF001
                self._protocol, self._before_asyncpg
            )

    def take(self) -> list[int]:
        """Return the unwritten marks, and restore the driver's own method."""
        taken, self._numbers = self._numbers, []
        if self._method == "_protocol":
            # A broken connection has no protocol any more.
            if isinstance(self._connection._protocol, _WatchedProtocol):  # noqa: SLF001
                self._connection._protocol = self._protocol  # noqa: SLF001
            self._protocol = None
        elif self._method:
            vars(self._connection).pop(self._method, None)
        return taken

    def surviving(self) -> Steps[frozenset[int]]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        # A message that no statement has followed needs no mark.
        unwritten = frozenset(self._unwritten())
        found = yield from self._block.look_for_marks()
        self._block.surviving = found | unwritten
        return self._block.surviving

    def end(self) -> None:
        """Drop unwritten marks after the hold, so that the last check expects only written ones."""
        self._block.surviving -= frozenset(self.take())

    def _unwritten(self) -> Sequence[int]:
        if self._is_any_lost or (self._numbers and not self._method):
            raise RequestRefused(
                "send_not_marked",
                "this driver needs 'await tx.send_async(…)', or SqlLedger(…, savepoints=False)"
                " if you use no savepoints",
            )
        return self._numbers

    async def _before_psycopg(self, steps: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
        """Write the marks, then do the work of wait(), which every statement passes through."""
        from psycopg.pq import TransactionStatus

        connection, wait = self._connection, type(self._connection).wait
        status = connection.pgconn.transaction_status
        # In a pipeline the mark is queued. Else an active connection is in a COPY: write no mark.
        if connection._pipeline is not None or status != TransactionStatus.ACTIVE:  # noqa: SLF001
            numbers = self._take_written()
            # A failed transaction needs no mark: it can only be rolled back, with its messages.
            if status not in {TransactionStatus.INERROR, TransactionStatus.IDLE}:
                ((sql, (marks,)),) = marking(self._dialect, numbers)
                command = sql.replace("?", f"'{marks}'").encode()
                await self._write(
                    lambda: wait(connection, connection._exec_command(command))  # noqa: SLF001
                )
        return await wait(connection, steps, *rest, **named)

    async def _before_aiosqlite(self, work: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401
        """Write the marks, then queue the work, as every statement of the connection is queued."""
        connection, queue = self._connection, type(self._connection)._execute  # noqa: SLF001
        numbers = self._take_written()
        if connection.in_transaction:
            below = connection._conn  # noqa: SLF001
            for statement in marking(self._dialect, numbers):
                await self._write(partial(queue, connection, below.execute, *statement))
        return await queue(connection, work, *rest, **named)

    async def _before_asyncpg(self, protocol: Any) -> None:  # noqa: ANN401 - compiled, untyped
        """Write the marks before the next request to the server."""
        has_failed = sys.modules["asyncpg"].InFailedSQLTransactionError
        numbers = self._take_written()
        if not numbers or not protocol.is_in_transaction():
            return
        ((sql, (marks,)),) = marking(self._dialect, numbers)

        async def mark() -> None:
            # A failed transaction needs no mark: it is rolled back, with its messages.
            with suppress(has_failed):
                await protocol.query(sql.replace("?", f"'{marks}'"), None)

        await self._write(mark)

    def _take_written(self) -> list[int]:
        """Return the marks to write now; they are dropped if no transaction can take them."""
        taken = self.take()
        if taken:
            self._block.note_marked()
        return taken

    async def _write(self, work: Callable[[], Any]) -> None:
        # An interrupted statement may have run or not, so the surviving messages are unknown.
        self._is_any_lost, was_lost = True, self._is_any_lost
        await work()
        self._is_any_lost = was_lost


#: asyncpg's requests to a server; the rest of its protocol does not affect the transaction.
_ASYNCPG_REQUESTS = frozenset(
    {
        "query",
        "prepare",
        "bind",
        "bind_execute",
        "bind_execute_many",
        "execute",
        "copy_in",
        "copy_out",
    }
)


class _WatchedProtocol:
    """Proxy for an asyncpg connection's protocol, whose methods cannot be replaced."""

    def __init__(self, protocol: Any, before: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ANN401
        self._protocol = protocol
        self._before = before

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the protocol has
        found = getattr(self._protocol, name)
        if name not in _ASYNCPG_REQUESTS:
            return found

        async def request(*values: Any, **named: Any) -> Any:  # noqa: ANN401
            await self._before(self._protocol)
            return await found(*values, **named)

        return request


def _method_of(connection: object) -> str:
    """Return the attribute of a driver's connection that all its statements pass through."""
    for package, kind, method in (
        ("asyncpg", "Connection", "_protocol"),
        ("psycopg", "AsyncConnection", "wait"),
        ("aiosqlite", "Connection", "_execute"),
    ):
        if is_a(package, kind, connection):
            return method
    return ""
