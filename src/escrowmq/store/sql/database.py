"""One connection to the database of a state store, opened again after each error."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import RequestRefused, StoreUnusable, Unavailable
from escrowmq.store.sql.schema import make_tables, remake_old_tables, state_tables
from escrowmq.transaction.state_store import StatesLostTrack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError

    from escrowmq.store.sql.schema import StateTables

CONNECT_S = 5
#: The system notices after about 10 s that the database's machine is gone. A URL may say otherwise.
_NETWORK = {
    "connect_timeout": CONNECT_S,
    "keepalives": 1,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")
#: SQLite's driver begins no transaction for tables, and two brokers may make them at once.
_BEGIN = ("BEGIN IMMEDIATE",)
STATEMENT_MS = 60_000
"""PostgreSQL ends a statement that takes longer."""

CAUSE_CHARS_MAX = 200
"""The database's words in an error are cut to this length."""


class StateDatabase:
    """The database that a URL names. Use it from one thread at a time."""

    def __init__(self, url: str) -> None:
        """Raise StoreUnusable if SQLAlchemy or the driver is missing, or the URL is malformed."""
        try:
            import sqlalchemy as sa
        except ImportError:
            raise StoreUnusable(
                "sqlalchemy_missing", 'install it with: pip install "escrowmq[sql]"'
            ) from None
        self._errors = sa.exc
        self.tables: StateTables = state_tables()
        self._engine = _engine(url)
        self._connection: Connection | None = None
        #: The driver's connection, also while SQLAlchemy still prepares it.
        self._raw: Any = None
        sa.event.listen(self._engine, "do_connect", self._connect)
        self._is_made = False

    @property
    def is_sqlite(self) -> bool:
        """Whether the URL names an SQLite database, in a file or in memory."""
        return self._engine.dialect.name == "sqlite"

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection; an error ends it."""
        return self._connection is not None

    def connect(self) -> None:
        """Connect unless it is connected; make the tables if they do not exist."""
        if self._connection is None:
            with self._refusing():
                self._connection = self._engine.connect()
                for pragma in _PRAGMAS if self.is_sqlite else ():
                    self._connection.exec_driver_sql(pragma)
                self._connection.commit()
        if not self._is_made:
            with self.transaction() as connection:
                for begin in _BEGIN if self.is_sqlite else ():
                    connection.exec_driver_sql(begin)
                make_tables(connection, self.tables)
            self._is_made = True

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run the block as one transaction; an error ends the connection."""
        with self._refusing():
            if self._connection is None:
                raise Unavailable("state_store_away", "the connection ended")
            with self._connection.begin():
                yield self._connection

    def remake_old(self) -> None:
        """Replace tables of an older version by empty ones."""
        with self._refusing(), self._engine.begin() as connection:
            remake_old_tables(connection, self.tables)

    def interrupt(self) -> None:
        """End the call under way, from another thread: it raises Unavailable."""
        raw = self._raw
        # The call may end by itself meanwhile, and its connection with it.
        with suppress(Exception):
            if self.is_sqlite:
                raw.interrupt()
            else:
                _cut(raw.fileno())

    def _connect(self, dialect: Any, _: object, arguments: Any, options: Any) -> Any:  # noqa: ANN401 - of the driver
        self._raw = dialect.connect(*arguments, **options)
        return self._raw

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
        self._engine.dispose()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except self._errors.IntegrityError:
            # A row that this broker adds is there already: the rows are not those it left.
            self.close()
            raise StatesLostTrack from None
        except StatesLostTrack:
            # The next call connects again, and so reads the position again.
            self.close()
            raise
        except (self._errors.DataError, self._errors.ProgrammingError) as error:
            self.close()
            raise Unavailable(
                "state_store_rejected", "the database rejects a statement", cause=_cause(error)
            ) from None
        except self._errors.SQLAlchemyError as error:
            self.close()
            raise Unavailable(
                "state_store_away", "the database of the state store is away", cause=_cause(error)
            ) from None


def _cut(handle: int) -> None:
    """End a socket both ways; a server that is silent would not obey a request to cancel."""
    with socket.socket(fileno=os.dup(handle)) as connected:
        connected.shutdown(socket.SHUT_RDWR)


def _cause(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).strip()[:CAUSE_CHARS_MAX]


def _engine(url: str) -> Engine:
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        # The error leaves out the value, which may hold a password.
        raise RequestRefused(
            "bad_config", "must be a URL of SQLAlchemy", key="transaction.state_url"
        ) from None
    parsed, arguments = _with_driver(parsed)
    try:
        return sa.create_engine(parsed, poolclass=NullPool, connect_args=arguments)
    except ImportError as missing:
        raise StoreUnusable(
            "sql_driver_missing",
            'install it; for PostgreSQL: pip install "escrowmq[sql,postgres]"',
            driver=missing.name or parsed.drivername,
        ) from None


def _with_driver(url: URL) -> tuple[URL, dict[str, Any]]:
    """Return the URL with the driver to use, and the arguments of its connections."""
    if url.get_backend_name() == "sqlite":
        # One thread at a time uses the connection, but not always the same one.
        return url, {"check_same_thread": False, "timeout": CONNECT_S}
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername == "postgresql+psycopg":
        network = {name: value for name, value in _NETWORK.items() if name not in url.query}
        return url, {**network, "options": f"-c statement_timeout={STATEMENT_MS}"}
    return url, {}
