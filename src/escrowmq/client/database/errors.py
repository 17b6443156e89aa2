"""Meanings of database errors, across drivers and SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from escrowmq.model.errors import RequestRefused


class CommitRefused(Exception):
    """The database refused COMMIT, and the transaction is certainly rolled back.

    ``error`` is the driver's error, or the one to raise to the caller instead.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Failure(StrEnum):
    """Meaning of a database's error for the ledger."""

    DUPLICATE = "duplicate"
    LOCKED = "locked"
    #: A statement of ours exceeded its timeout.
    SLOW = "too_slow"
    READ_ONLY = "read_only"
    UNREACHABLE = "ledger_unreachable"
    NO_TABLE = "ledger_missing"
    #: The Python package for the database's URL is not installed.
    NO_DRIVER = "driver_missing"
    #: An earlier statement failed, so the transaction can only be rolled back.
    ABORTED = "transaction_aborted"
    OTHER = "database_failed"


_BY_SQLSTATE = {
    "23505": Failure.DUPLICATE,
    "55P03": Failure.LOCKED,  # lock_not_available: lock_timeout
    "57014": Failure.SLOW,  # query_canceled: statement_timeout
    "40P01": Failure.LOCKED,  # deadlock_detected
    "25006": Failure.READ_ONLY,
    "25P02": Failure.ABORTED,  # in_failed_sql_transaction
    "42P01": Failure.NO_TABLE,
    "57P01": Failure.UNREACHABLE,  # admin_shutdown
    "57P02": Failure.UNREACHABLE,  # crash_shutdown
    "57P03": Failure.UNREACHABLE,  # cannot_connect_now
}

_BY_SQLITE_NAME = {
    "SQLITE_CONSTRAINT_PRIMARYKEY": Failure.DUPLICATE,
    "SQLITE_BUSY": Failure.LOCKED,
    "SQLITE_BUSY_SNAPSHOT": Failure.LOCKED,
    "SQLITE_BUSY_RECOVERY": Failure.LOCKED,
    "SQLITE_BUSY_TIMEOUT": Failure.LOCKED,
    "SQLITE_LOCKED": Failure.LOCKED,
    "SQLITE_LOCKED_SHAREDCACHE": Failure.LOCKED,
    "SQLITE_CANTOPEN": Failure.UNREACHABLE,
    "SQLITE_INTERRUPT": Failure.SLOW,
}


def failure_of(error: BaseException) -> Failure:
    """Return what an error of sqlite3, psycopg, asyncpg or SQLAlchemy over them means."""
    for cause in _chain(error):
        if isinstance(cause, ImportError):
            return Failure.NO_DRIVER
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if state in _BY_SQLSTATE:
            return _BY_SQLSTATE[state]
        if _is_lost(cause, state):
            return Failure.UNREACHABLE
        found = _sqlite_failure(cause)
        if found is not None:
            return found
    return Failure.OTHER


def _sqlite_failure(error: BaseException) -> Failure | None:
    """Return what an SQLite error means; None for another driver's or an unlisted error."""
    name = getattr(error, "sqlite_errorname", None)
    if name is None:
        return None
    # SQLite has eight READONLY codes.
    if name.startswith("SQLITE_READONLY"):
        return Failure.READ_ONLY
    # SQLite has one code for everything that can be wrong with a statement, so compare the text.
    if str(error).startswith("no such table"):
        return Failure.NO_TABLE
    return _BY_SQLITE_NAME.get(name)


#: PostgreSQL's errors, besides class 23, for a COMMIT that it rolled back.
_REFUSING_SQLSTATES = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
}


def is_commit_refused(error: Exception, *, is_still_open: bool) -> bool:
    """Whether a driver's error, raised by COMMIT itself, means that nothing was committed.

    SQLite's error counts only while the transaction is still open; the caller must roll it back.
    """
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return state.startswith("23") or state in _REFUSING_SQLSTATES
    name = getattr(error, "sqlite_errorname", None)
    return is_still_open and isinstance(name, str) and name.startswith("SQLITE_CONSTRAINT")


def aborted() -> RequestRefused:
    """Return the refusal for a transaction in which PostgreSQL would turn COMMIT into ROLLBACK."""
    return RequestRefused(
        "transaction_aborted",
        "a statement failed in it, so it can only be rolled back: let the error leave the block,"
        " or run such a statement in a savepoint",
    )


def _is_lost(error: BaseException, state: object) -> bool:
    """Whether the connection is lost. An SQLSTATE outside class 08 came over a live one."""
    if isinstance(state, str):
        return state.startswith("08")  # connection_exception
    kind = type(error)
    if kind.__name__ == "OperationalError" and kind.__module__.startswith("psycopg"):
        return True
    # asyncpg raises these unchanged when it connects.
    return isinstance(error, OSError | TimeoutError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__
