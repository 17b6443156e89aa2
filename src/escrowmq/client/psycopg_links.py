"""psycopg 3 connections, sync and async, as links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.client.database_errors import CommitRefused, aborted, is_commit_refused
from escrowmq.client.ledger_sql import POSTGRESQL
from escrowmq.client.links import Result, cut

if TYPE_CHECKING:
    import psycopg


class _PsycopgFacts:
    dialect = POSTGRESQL

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        self._facts = connection

    @property
    def is_autocommit(self) -> bool:
        return self._facts.autocommit

    @property
    def is_in_transaction(self) -> bool:
        from psycopg.pq import TransactionStatus

        return self._facts.info.transaction_status != TransactionStatus.IDLE

    @property
    def is_in_callers_block(self) -> bool:
        # psycopg counts its open "with connection.transaction()" blocks in a private attribute.
        return bool(self._facts._num_transactions)  # noqa: SLF001

    @property
    def _is_aborted(self) -> bool:
        from psycopg.pq import TransactionStatus

        return self._facts.info.transaction_status == TransactionStatus.INERROR

    def _is_commit_its_own(self, base: str) -> bool:
        """Whether to call commit(): it is overridden, will refuse, or has nothing to commit."""
        import psycopg

        return (
            type(self._facts).commit is not getattr(psycopg, base).commit
            or self.is_in_callers_block
            or not self.is_in_transaction
        )


class PsycopgLink(_PsycopgFacts):
    """A sync connection of psycopg 3."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        self.connection = connection

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        with self._cursor() as cursor:
            cursor.execute(_percents(sql), parameters or None)
            return Result(cursor.fetchall() if cursor.description else (), cursor.rowcount)

    def commit(self) -> None:
        """Commit by a statement: psycopg's own method ignores the server's response."""
        try:
            if self._is_commit_its_own("Connection"):
                if self._is_aborted:
                    self.connection.rollback()
                    check_answer("ROLLBACK")
                type(self.connection).commit(self.connection)
                return
            with self._cursor() as cursor:
                cursor.execute(b"COMMIT", prepare=False)
                check_answer(cursor.statusmessage)
        except Exception as error:
            if not is_commit_refused(error, is_still_open=False):
                raise
            raise CommitRefused(error) from error

    def _cursor(self) -> psycopg.Cursor[Any]:
        import psycopg

        # Our own cursor: the user's row and cursor factories must not change what we read.
        return psycopg.Cursor(self.connection, row_factory=psycopg.rows.tuple_row)

    def rollback(self) -> None:
        """Roll back."""
        self.connection.rollback()

    def close(self) -> None:
        """Roll back and close."""
        try:
            self.connection.rollback()
        finally:
            self.connection.close()

    def cut(self) -> None:
        """Break the connection."""
        cut(self.connection)


class AsyncPsycopgLink(_PsycopgFacts):
    """An async connection of psycopg 3."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self.connection = connection

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement."""
        async with self._cursor() as cursor:
            await cursor.execute(_percents(sql), parameters or None)
            rows = await cursor.fetchall() if cursor.description else ()
            return Result(rows, cursor.rowcount)

    async def commit(self) -> None:
        """Commit by a statement: psycopg's own method ignores the server's response."""
        try:
            if self._is_commit_its_own("AsyncConnection"):
                if self._is_aborted:
                    await self.connection.rollback()
                    check_answer("ROLLBACK")
                await type(self.connection).commit(self.connection)
                return
            async with self._cursor() as cursor:
                await cursor.execute(b"COMMIT", prepare=False)
                check_answer(cursor.statusmessage)
        except Exception as error:
            if not is_commit_refused(error, is_still_open=False):
                raise
            raise CommitRefused(error) from error

    def _cursor(self) -> psycopg.AsyncCursor[Any]:
        import psycopg

        return psycopg.AsyncCursor(self.connection, row_factory=psycopg.rows.tuple_row)

    async def rollback(self) -> None:
        """Roll back."""
        await self.connection.rollback()

    async def close(self) -> None:
        """Roll back and close."""
        try:
            await self.connection.rollback()
        finally:
            await self.connection.close()


def check_answer(status: str | None) -> None:
    """Raise if PostgreSQL answered COMMIT with ROLLBACK, as it does after a failed statement."""
    if status == "ROLLBACK":
        raise CommitRefused(aborted())


def _percents(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()
