"""Adapters of psycopg 3 connections, sync and async."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from escrowmq.client.database.connections import DriverAdapter, Result
from escrowmq.client.database.errors import CommitRefused, aborted
from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.client.trampoline import Calls, run_async


class _PsycopgAdapter(DriverAdapter):
    """Shared part of both adapters."""

    dialect = POSTGRESQL
    #: Name of psycopg's class for this kind of connection.
    _kind: str

    @property
    def is_autocommit(self) -> bool:
        return bool(self.connection.autocommit)

    @property
    def is_in_transaction(self) -> bool:
        from psycopg.pq import TransactionStatus

        return bool(self.connection.info.transaction_status != TransactionStatus.IDLE)

    @property
    def is_in_callers_block(self) -> bool:
        # psycopg counts its open "with connection.transaction()" blocks in a private attribute.
        return bool(self.connection._num_transactions)  # noqa: SLF001

    def _commit(self) -> Calls[None]:
        """Commit by a statement if possible: psycopg's own method ignores the server's answer."""
        if not self._commits_by_method():
            cursor = self._cursor()
            try:
                yield partial(cursor.execute, b"COMMIT", prepare=False)
                check_answer(cursor.statusmessage)
            finally:
                yield cursor.close
            return
        from psycopg.pq import TransactionStatus

        if self.connection.info.transaction_status == TransactionStatus.INERROR:
            yield self.connection.rollback
            check_answer("ROLLBACK")
        yield from super()._commit()

    def _commits_by_method(self) -> bool:
        """Whether to call commit(): it is overridden, will refuse, or has nothing to commit."""
        import psycopg

        return (
            type(self.connection).commit is not getattr(psycopg, self._kind).commit
            or self.is_in_callers_block
            or not self.is_in_transaction
        )

    def _cursor(self) -> Any:  # noqa: ANN401 -- a cursor of either kind
        import psycopg

        made = psycopg.Cursor if self._kind == "Connection" else psycopg.AsyncCursor
        # Our own cursor: the user's row and cursor factories must not change what we read.
        return made(self.connection, row_factory=psycopg.rows.tuple_row)


class PsycopgConnection(_PsycopgAdapter):
    """A sync connection of psycopg 3."""

    _kind = "Connection"

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        with self._cursor() as cursor:
            cursor.execute(_percents(sql), parameters or None)
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount)


class AsyncPsycopgConnection(_PsycopgAdapter):
    """An async connection of psycopg 3."""

    _kind = "AsyncConnection"
    _run = staticmethod(run_async)

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        async with self._cursor() as cursor:
            await cursor.execute(_percents(sql), parameters or None)
            rows = await cursor.fetchall() if cursor.description else ()
            return Result(rows, cursor.rowcount)


def check_answer(status: str | None) -> None:
    """Raise if PostgreSQL answered COMMIT with ROLLBACK, as it does after a failed statement."""
    if status == "ROLLBACK":
        raise CommitRefused(aborted())


def _percents(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()
