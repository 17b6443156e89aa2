"""The driver's COMMIT below SQLAlchemy, and its response.

Errors from ``Session.commit`` and ``Connection.commit`` may also come from a flush before COMMIT or
from a listener after it. An error from here is the response to COMMIT itself.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError

from escrowmq.client.database.connections import SqlAlchemyConnection
from escrowmq.client.database.errors import (
    CommitRefused,
    Failure,
    aborted,
    failure_of,
    is_commit_refused,
)
from escrowmq.client.database.ledger_sql import SQLITE

#: libpq's status of a failed transaction, which psycopg 2 and 3 report.
_IN_ERROR = 3


class DriverConnection(SqlAlchemyConnection):
    """Connection that commits and rolls back below SQLAlchemy, from within its commit event."""

    def commit(self) -> None:
        """Commit on the driver's connection; raise the errors that SQLAlchemy would raise."""
        try:
            self.check_not_aborted()
            self.connection.connection.commit()
        except self._driver_errors as error:
            raised = self._wrapped(error)
            is_still_open = self.dialect is SQLITE and self.is_in_transaction
            if not is_commit_refused(error, is_still_open=is_still_open):
                raise raised from error
            self.rollback()
            raise CommitRefused(raised) from error

    def rollback(self) -> None:
        """Roll back on the driver's connection: for SQLAlchemy the transaction has ended."""
        self.connection.connection.rollback()

    def check_not_aborted(self) -> None:
        """Refuse a transaction that PostgreSQL would silently roll back at COMMIT."""
        if self.dialect is SQLITE:
            return
        if self._is_aborted():
            self.rollback()
            raise CommitRefused(aborted())

    def _is_aborted(self) -> bool:
        driver: Any = self.connection.connection.driver_connection
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        if status is not None:
            return bool(status == _IN_ERROR)
        # asyncpg does not expose the status, so ask the server.
        try:
            self.execute("SELECT 1")
        except Exception as error:
            if failure_of(error) is Failure.ABORTED:
                return True
            raise
        return False

    @property
    def _driver_errors(self) -> type[Exception]:
        errors: type[Exception] = self.connection.dialect.loaded_dbapi.Error
        return errors

    def _wrapped(self, error: Exception) -> Exception:
        dialect = self.connection.dialect
        wrapped = DBAPIError.instance(None, None, error, self._driver_errors, dialect=dialect)
        assert isinstance(wrapped, Exception)
        return wrapped
