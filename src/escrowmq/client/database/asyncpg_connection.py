"""Adapter of an asyncpg connection, the user's own or from a pool.

asyncpg commits each statement by itself unless a transaction was begun, so the adapter begins one
where none is open. It uses ``Connection.transaction()``, so the user's own calls of that inside
the block are savepoints. The adapter ends the transaction by statements: asyncpg's Transaction
ignores the command tag of COMMIT, which is ROLLBACK if a statement has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

from escrowmq.client.database.connections import DriverAdapter, Result
from escrowmq.client.database.errors import CommitRefused
from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.client.database.psycopg_connections import check_answer
from escrowmq.client.network.background import background
from escrowmq.client.trampoline import Calls, SyncOrAsync, driven, run_async

#: Timeout for the last ROLLBACK and for closing a connection.
CLOSE_TIMEOUT_S = 5.0


class AsyncpgConnection(DriverAdapter):
    """A connection of asyncpg."""

    _run = staticmethod(run_async)
    dialect = POSTGRESQL
    #: asyncpg has no autocommit mode: the connection begins the transactions that it needs.
    is_autocommit = False

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 -- asyncpg has no types
        super().__init__(connection)
        self._has_begun = False

    @property
    def is_in_transaction(self) -> bool:
        """Whether a transaction has begun."""
        return not self.connection.is_closed() and bool(self.connection.is_in_transaction())

    @property
    def is_in_callers_block(self) -> bool:
        """Whether the caller began the transaction by ``connection.transaction()``."""
        # asyncpg has no public attribute for that. A BEGIN statement leaves _top_xact unset.
        return not self._has_begun and self.connection._top_xact is not None  # noqa: SLF001

    @driven
    def execute(self, sql: str, parameters: Sequence[str] = ()) -> Calls[Result]:
        """Run one statement; begin a transaction first if none is open."""
        yield from self._begin()
        import asyncpg  # type: ignore[import-untyped]  # it brings no types

        statement = (_numbered(sql), *parameters)
        if sql.startswith("SELECT") or " RETURNING " in sql:
            # A record class that the user set on the connection must not change what we read.
            found = yield partial(self.connection.fetch, *statement, record_class=asyncpg.Record)
            rows = [tuple(record) for record in found]
            return Result(rows, len(rows))
        status = yield partial(self.connection.execute, *statement)
        count = status.rpartition(" ")[2]
        return Result((), int(count) if count.isdecimal() else -1)

    def _begin(self) -> Calls[None]:
        if self.is_in_transaction:
            return
        if self._has_begun:
            # The caller's code ended our transaction. Begin another, as other drivers do; the block
            # detects that its mark is gone.
            yield partial(self.connection.execute, "BEGIN")
            return
        yield self.connection.transaction().start
        self._has_begun = True

    @driven
    def commit(self) -> Calls[None]:
        """Commit."""
        try:
            yield from self._checked_commit()
        except CommitRefused:
            self._forget()
            raise
        self._forget()

    def _commit(self) -> Calls[None]:
        check_answer((yield partial(self.connection.execute, "COMMIT")))

    @driven
    def rollback(self) -> Calls[None]:
        """Roll back."""
        if self.is_in_transaction:
            yield partial(self.connection.execute, "ROLLBACK")
        self._forget()

    async def roll_back_begun(self) -> None:
        """Roll back a transaction that this adapter began; leave the user's own open."""
        if self._has_begun:
            await self.rollback()

    @driven
    def close(self) -> Calls[None]:
        """Roll back and close."""
        try:
            if self.is_in_transaction:
                yield partial(self.connection.execute, "ROLLBACK", timeout=CLOSE_TIMEOUT_S)
        finally:
            yield partial(self.connection.close, timeout=CLOSE_TIMEOUT_S)

    def _forget(self) -> None:
        """Tell asyncpg that its transaction is over: it does not notice a COMMIT statement."""
        if self._has_begun:
            self._has_begun = False
            # A pool lends a proxy: ``_con`` is the connection inside.
            getattr(self.connection, "_con", self.connection)._top_xact = None  # noqa: SLF001


class WaitedAsyncpgConnection(AsyncpgConnection):
    """An asyncpg connection on our background loop, for callers that block on each call."""

    @staticmethod
    def _run(*work: Any) -> SyncOrAsync:  # noqa: ANN401 -- as run_async
        return background().run(run_async(*work))


@contextmanager
def opened_connection(url: str, connect_timeout_s: float) -> Iterator[WaitedAsyncpgConnection]:
    """Open a connection for the duration of the block."""
    import asyncpg

    async def connect() -> Any:  # noqa: ANN401 -- as above
        return await asyncpg.connect(url, timeout=connect_timeout_s)

    connection = WaitedAsyncpgConnection(background().run(connect()))
    try:
        yield connection
    finally:
        # Errors do not matter: a broken connection is closed already.
        with suppress(Exception):
            connection.close()


@lru_cache(maxsize=256)
def _numbered(sql: str) -> str:
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
