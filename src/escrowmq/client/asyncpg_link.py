"""An asyncpg connection, the user's own or from a pool, as a link.

asyncpg commits each statement by itself unless a transaction was begun, so the link begins one
where none is open. It uses ``Connection.transaction()``, so the user's own calls of that inside
the block are savepoints. The link ends the transaction by statements: asyncpg's Transaction
ignores the command tag of COMMIT, which is ROLLBACK if a statement has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from escrowmq.client.background import background
from escrowmq.client.database_errors import CommitRefused, is_commit_refused
from escrowmq.client.ledger_sql import POSTGRESQL
from escrowmq.client.links import Result, cut
from escrowmq.client.psycopg_links import check_answer

#: Timeout for the last ROLLBACK and for closing a connection.
CLOSE_TIMEOUT_S = 5.0


class AsyncpgLink:
    """A connection of asyncpg."""

    dialect = POSTGRESQL
    #: asyncpg has no autocommit mode: the link begins the transactions that it needs.
    is_autocommit = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- asyncpg has no types
        self.connection = connection
        self._has_begun = False

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        return not self.connection.is_closed() and bool(self.connection.is_in_transaction())

    @property
    def is_in_callers_block(self) -> bool:
        """Whether an "async with connection.transaction()" is around us."""
        # asyncpg has no public attribute for it. A BEGIN sent as a statement does not set this one.
        return not self._has_begun and self.connection._top_xact is not None  # noqa: SLF001

    async def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement, in a transaction."""
        await self._begin()
        import asyncpg  # type: ignore[import-untyped]  # it brings no types

        numbered = _numbered(sql)
        if _has_rows(sql):
            # A record class that the user set on the connection must not change what we read.
            found = await self.connection.fetch(numbered, *parameters, record_class=asyncpg.Record)
            rows = [tuple(record) for record in found]
            return Result(rows, len(rows))
        status = await self.connection.execute(numbered, *parameters)
        count = status.rpartition(" ")[2]
        return Result((), int(count) if count.isdecimal() else -1)

    async def _begin(self) -> None:
        if self.is_in_transaction:
            return
        if self._has_begun:
            # The caller's code ended our transaction. Other drivers begin a new one here, too; the
            # block detects that by its mark.
            await self.connection.execute("BEGIN")
            return
        await self.connection.transaction().start()
        self._has_begun = True

    async def commit(self) -> None:
        """Commit."""
        try:
            status = await self.connection.execute("COMMIT")
        except Exception as error:
            if not is_commit_refused(error, is_still_open=False):
                raise
            self._forget()
            raise CommitRefused(error) from error
        self._forget()
        check_answer(status)

    async def rollback(self) -> None:
        """Roll back."""
        if self.is_in_transaction:
            await self.connection.execute("ROLLBACK")
        self._forget()

    async def end_own(self) -> None:
        """Roll back a transaction that the link began; leave one that the user began open."""
        if self._has_begun:
            await self.rollback()

    async def close(self) -> None:
        """Roll back and close."""
        try:
            if self.is_in_transaction:
                await self.connection.execute("ROLLBACK", timeout=CLOSE_TIMEOUT_S)
        finally:
            await self.connection.close(timeout=CLOSE_TIMEOUT_S)

    def _forget(self) -> None:
        """Tell asyncpg that its transaction is over: it does not notice a COMMIT statement."""
        if self._has_begun:
            self._has_begun = False
            # A pool lends a proxy around the connection.
            bare = getattr(self.connection, "_con", self.connection)
            bare._top_xact = None  # noqa: SLF001


class WaitedAsyncpgLink:
    """An asyncpg connection on our background loop, for callers that block on each call."""

    dialect = POSTGRESQL
    is_autocommit = False
    is_in_callers_block = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- as above
        self._connection = connection
        self._link = AsyncpgLink(connection)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        return self._link.is_in_transaction

    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Result:
        """Run one statement, in a transaction."""
        return background().run(self._link.execute(sql, parameters))

    def commit(self) -> None:
        """Commit."""
        background().run(self._link.commit())

    def rollback(self) -> None:
        """Roll back."""
        background().run(self._link.rollback())

    def close(self) -> None:
        """Roll back and close."""
        background().run(self._link.close())

    def cut(self) -> None:
        """Break the connection."""
        cut(self._connection)


@contextmanager
def opened_link(url: str, connect_timeout_s: float) -> Iterator[WaitedAsyncpgLink]:
    """Open a connection for the duration of the block."""
    import asyncpg

    async def connect() -> Any:  # noqa: ANN401 -- as above
        return await asyncpg.connect(url, timeout=connect_timeout_s)

    link = WaitedAsyncpgLink(background().run(connect()))
    try:
        yield link
    finally:
        # A broken connection is closed already.
        with suppress(Exception):
            link.close()


def _has_rows(sql: str) -> bool:
    return sql.startswith("SELECT") or " RETURNING " in sql


@lru_cache(maxsize=256)
def _numbered(sql: str) -> str:
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
