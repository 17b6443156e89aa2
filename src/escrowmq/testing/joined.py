"""Sessions that join a test's own transaction, which the test rolls back at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection

from escrowmq.client.database.connections import SqlAlchemyConnection
from escrowmq.client.database.ledger_sql import SQLITE
from escrowmq.client.database.sqlalchemy_transactions import JOINED
from escrowmq.model.errors import RequestRefused

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def join_test(session: Session) -> Session:
    """Allow transaction blocks in a session that joins a test's transaction; return the session.

    ``session`` must be bound to a connection on which the test has begun a transaction, with
    ``join_transaction_mode="create_savepoint"``. The session's commit releases a savepoint, and the
    block treats that as the COMMIT: messages become visible at the test's broker. The rollback
    after the test removes the rows and the ledger's row but not the messages, so use this only in
    tests. For an AsyncSession, call ``await session.run_sync(join_test)``.
    """
    connection = session.get_bind()
    if (
        not isinstance(connection, Connection)
        or not connection.in_transaction()
        or session.join_transaction_mode != "create_savepoint"
    ):
        raise RequestRefused(
            "session_joins_nothing",
            "bind it to a connection that has begun, with join_transaction_mode='create_savepoint'",
        )
    wrapped = SqlAlchemyConnection(connection)
    if wrapped.dialect is SQLITE and not wrapped.is_in_transaction:
        # SQLite's driver begins a transaction only before the first write. Without BEGIN, the
        # savepoint would be the transaction.
        wrapped.execute("BEGIN")
    session.info[JOINED] = True
    return session
