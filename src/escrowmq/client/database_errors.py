"""What went wrong in a database, whichever driver or layer reports it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum


class Failure(StrEnum):
    """What a database's error means to the ledger."""

    DUPLICATE = "duplicate"
    LOCKED = "locked"
    #: It took longer than a statement of ours may.
    SLOW = "too_slow"
    READ_ONLY = "read_only"
    UNREACHABLE = "ledger_unreachable"
    NO_TABLE = "ledger_missing"
    OTHER = "database_failed"


_BY_SQLSTATE = {
    "23505": Failure.DUPLICATE,
    "55P03": Failure.LOCKED,  # lock_not_available: lock_timeout
    "57014": Failure.SLOW,  # query_canceled: statement_timeout
    "40P01": Failure.LOCKED,  # deadlock_detected
    "25006": Failure.READ_ONLY,
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
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if state in _BY_SQLSTATE:
            return _BY_SQLSTATE[state]
        if state is None and _is_lost(cause):
            return Failure.UNREACHABLE
        name = getattr(cause, "sqlite_errorname", None)
        if name is None:
            continue
        if name in _BY_SQLITE_NAME:
            return _BY_SQLITE_NAME[name]
        # READONLY has eight kinds.
        if name.startswith("SQLITE_READONLY"):
            return Failure.READ_ONLY
        # SQLite has one number for all that is wrong with a statement.
        if str(cause).startswith("no such table"):
            return Failure.NO_TABLE
    return Failure.OTHER


def _is_lost(error: BaseException) -> bool:
    """Whether psycopg has no connection; while there is one, the server says what is wrong."""
    kind = type(error)
    return kind.__name__ == "OperationalError" and kind.__module__.startswith("psycopg")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was made of, outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__
