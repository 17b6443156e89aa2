"""What went wrong in a database, whichever driver or layer reports it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from escrowmq.model.errors import RequestRefused


class CommitRefused(Exception):
    """The database answered COMMIT with a refusal, and the transaction is rolled back for certain.

    ``error`` is what the driver raised, or what the caller is to see in its place.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Failure(StrEnum):
    """What a database's error means to the ledger."""

    DUPLICATE = "duplicate"
    LOCKED = "locked"
    #: It took longer than a statement of ours may.
    SLOW = "too_slow"
    READ_ONLY = "read_only"
    UNREACHABLE = "ledger_unreachable"
    NO_TABLE = "ledger_missing"
    #: The Python package that its URL needs is not installed.
    NO_DRIVER = "driver_missing"
    #: An earlier statement of the transaction failed: it can only be rolled back.
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
    """Tell what an error of sqlite3, psycopg, asyncpg or SQLAlchemy over one of them means."""
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
    """Tell what an error of SQLite means; None if it is not SQLite's, or means nothing special."""
    name = getattr(error, "sqlite_errorname", None)
    if name is None:
        return None
    # READONLY has eight kinds.
    if name.startswith("SQLITE_READONLY"):
        return Failure.READ_ONLY
    # SQLite has one number for all that is wrong with a statement.
    if str(error).startswith("no such table"):
        return Failure.NO_TABLE
    return _BY_SQLITE_NAME.get(name)


#: Besides class 23, what PostgreSQL answers to a COMMIT that it rolled back.
_REFUSING_SQLSTATES = {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
}


def is_commit_refused(error: Exception, *, is_still_open: bool) -> bool:
    """Whether a driver's error, raised by COMMIT itself, says that nothing was committed.

    SQLite's refusal counts only while the transaction is still open: it is then to be rolled back.
    """
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return state.startswith("23") or state in _REFUSING_SQLSTATES
    name = getattr(error, "sqlite_errorname", None)
    return is_still_open and isinstance(name, str) and name.startswith("SQLITE_CONSTRAINT")


def aborted() -> RequestRefused:
    """Make the refusal of a transaction that PostgreSQL would roll back when told to commit."""
    return RequestRefused(
        "transaction_aborted",
        "a statement failed in it, so it can only be rolled back: let the error leave the block,"
        " or run such a statement in a savepoint",
    )


def _is_lost(error: BaseException, state: object) -> bool:
    """Whether there is no connection; while there is one, the server says what is wrong."""
    if isinstance(state, str):
        return state.startswith("08")  # connection_exception
    kind = type(error)
    if kind.__name__ == "OperationalError" and kind.__module__.startswith("psycopg"):
        return True
    # asyncpg lets these through when it connects.
    return isinstance(error, OSError | TimeoutError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was made of, outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__
