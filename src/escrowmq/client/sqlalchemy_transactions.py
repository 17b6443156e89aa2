"""The user's transaction on SQLAlchemy's sync sessions and connections.

If the caller's own ``with`` block commits, our part runs in SQLAlchemy's events. A session's
``before_commit`` also fires for savepoints, and no event fires after a connection's COMMIT. So we
use the connection's ``commit`` event, which fires only for the outermost level. There we issue the
driver's COMMIT ourselves and check its result. SQLAlchemy's own COMMIT then has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, TwoPhaseTransaction, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin, scoped_session

from escrowmq.client.database_block import Row, Stage, run
from escrowmq.client.database_transactions import (
    DatabaseTransaction,
    Ending,
)
from escrowmq.client.ledger_sql import not_for_with
from escrowmq.client.links import SessionLink, SqlAlchemyLink
from escrowmq.client.open_blocks import Claim, already_open
from escrowmq.client.savepoint_marks import SoonMarks
from escrowmq.client.sqlalchemy_driver import DriverLink
from escrowmq.model.errors import OutcomeUnknown, RequestRefused


class _Hooks:
    """Listeners of a session or connection, with the block that it is currently in.

    They are added once per object and stay: a listener that removes itself while it is called
    breaks SQLAlchemy's loop over the listeners.
    """

    def __init__(self) -> None:
        self.current: SqlAlchemyTransaction | None = None

    def before_commit(self, session: Session) -> None:
        if self.current is not None and not session.in_nested_transaction():
            self.current.before_session_commits()

    def after_begin(
        self, _session: Session, _transaction: SessionTransaction, connection: Connection
    ) -> None:
        if self.current is not None:
            self.current.after_connection_joins(connection)

    def after_transaction_create(self, session: Session, transaction: SessionTransaction) -> None:
        if self.current is not None and self.current.is_open and transaction.nested:
            # SQLAlchemy delays a savepoint until the first statement; a mark would come before it.
            session.connection()

    def after_commit(self, session: Session) -> None:
        if self.current is not None and not session.in_nested_transaction():
            self.current.after_session_commits()

    def after_soft_rollback(self, _session: Session, ended: SessionTransaction) -> None:
        if self.current is not None and ended.parent is None:
            self.current.after_session_rolls_back()

    def commit(self, _connection: Connection) -> None:
        if self.current is not None:
            self.current.before_connection_commits()

    def rollback(self, _connection: Connection) -> None:
        if self.current is not None:
            self.current.before_connection_rolls_back()


_ATTRIBUTE = "_escrowmq_hooks"
#: Key in the ``info`` of a session that joins a test's transaction; ``escrowmq.testing`` sets it.
JOINED = "escrowmq_joins_test"
_SESSION_EVENTS = (
    "before_commit",
    "after_begin",
    "after_transaction_create",
    "after_commit",
    "after_soft_rollback",
)
_CONNECTION_EVENTS = ("commit", "rollback")


def _hooks_of(target: Session | Connection) -> _Hooks:
    hooks: _Hooks | None = vars(target).get(_ATTRIBUTE)
    if hooks is None:
        hooks = _Hooks()
        setattr(target, _ATTRIBUTE, hooks)
        for name in _SESSION_EVENTS if isinstance(target, Session) else _CONNECTION_EVENTS:
            event.listen(target, name, getattr(hooks, name))
    return hooks


class SqlAlchemyTransaction:
    """Adapter for a sync session or connection."""

    def __init__(self, database: Session | Connection, row: Row, max_duration_ms: int) -> None:
        self.is_commit_owned_by_caller = False
        self._database = database
        self._row = row
        self._max_duration_ms = max_duration_ms
        self._before_commit: Callable[[], None] | None = None
        self._ended: Callable[[Ending], None] | None = None
        self._hooks: list[_Hooks] = []
        self._is_joined = False

    def begin(self, now_ms: int) -> None:
        """Begin, refuse what cannot work, and attach to the events."""
        self.check_outermost()
        database = self._database
        if isinstance(database, Session):
            self.is_commit_owned_by_caller = _check_session(database)
            self._is_joined = JOINED in database.info
            kind = _JoinedLink if self._is_joined else SessionLink
            self._link: SqlAlchemyLink = kind(database)
            _check_one_connection(database)
        else:
            if isinstance(database.get_transaction(), TwoPhaseTransaction):
                raise _two_phase()
            # Set while the caller is in "with connection.begin()" or "with engine.begin()".
            self.is_commit_owned_by_caller = database._trans_context_manager is not None  # noqa: SLF001
            self._link = SqlAlchemyLink(database)
        hooks = [_hooks_of(target) for target in {database, self._link.connection}]
        if any(hook.current is not None and hook.current.is_open for hook in hooks):
            raise already_open()
        self._block = self._row.block(
            self._link, has_hooks=True, max_duration_ms=self._max_duration_ms
        )
        self._claim = Claim(self._link.connection.connection.driver_connection, self._block)
        try:
            run(self._block.begin(now_ms), self._link)
        except BaseException:
            self._claim.give_up()
            raise
        for hook in hooks:
            hook.current = self
        self._hooks = hooks

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._block.stage in {Stage.OPEN, Stage.ROW_WRITTEN, Stage.COMMITTING}

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open: its rollback would not withdraw a message."""
        if self._database.in_nested_transaction():
            raise RequestRefused(
                "savepoint_open", "only at the outermost level, outside savepoints"
            )

    def mark(self, numbers: Sequence[int]) -> None:
        """Mark messages in the currently open savepoint."""
        run(self._block.mark(numbers), self._link)

    def surviving(self) -> frozenset[int]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        return run(self._block.look_for_marks(), self._link)

    def soon_marks(self) -> SoonMarks:
        """Make the marks for a caller that cannot await. Call it after ``begin``."""
        driver = self._link.connection.connection.driver_connection
        return SoonMarks(driver, self._block, self._link.dialect)

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
        if self._block.stage is Stage.OPEN:
            try:
                self.check_outermost()
                if isinstance(self._database, Session):
                    self._database.flush()
                    _check_one_connection(self._database)
            except BaseException:
                self.poison()
                raise
        try:
            run(self._block.insert_row(now_ms), self._link)
        except BaseException:
            self._end(Ending.ROLLED_BACK)
            raise

    def commit(self) -> None:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        try:
            run(self._block.commit(), self._link)
        except BaseException:
            if self._block.stage is Stage.ROLLED_BACK:
                self._let_go()
            raise
        self._let_go()

    def rollback(self) -> None:
        """Roll back."""
        run(self._block.rollback(), self._link)
        self._let_go()

    def poison(self) -> None:
        """Roll back and discard the driver's connection; SQLAlchemy then allows only a rollback."""
        run(self._block.poison(), self._link)
        self._end(Ending.ROLLED_BACK)

    def release(self) -> None:
        """Detach. If the block owns the commit, stay attached for the database's response."""
        self._block.stage = Stage.RELEASED
        if self.is_commit_owned_by_caller:
            self._let_go()

    def on_before_commit(self, callback: Callable[[], None]) -> None:
        """Call the callback when the caller is about to commit, at the outermost level."""
        self._before_commit = callback

    def on_ended(self, callback: Callable[[Ending], None]) -> None:
        """Call the callback once when the transaction has ended; it must not raise."""
        self._ended = callback

    @property
    def _is_released(self) -> bool:
        return self._block.stage is Stage.RELEASED

    def after_connection_joins(self, connection: Connection) -> None:
        """Refuse a second connection before anything is written on it."""
        if self.is_open and connection is not self._link.connection:
            raise _several_connections()

    def before_session_commits(self) -> None:
        """Write our row while the session can still flush; refuse a commit inside our block."""
        if self._is_joined and self._block.stage is Stage.POISONED:
            self._block.refuse_commit()
        if not self.is_open or self._block.stage is Stage.COMMITTING:
            return
        if not self.is_commit_owned_by_caller:
            self._block.refuse_commit()
        if self._block.stage is Stage.OPEN:
            self._write()

    def before_connection_commits(self) -> None:
        """Refuse every COMMIT that is not ours or not prepared."""
        if self._block.stage in {Stage.COMMITTING, Stage.RELEASED}:
            # Commit here, so that a listener's error is not mistaken for the database's response.
            DriverLink(self._link.connection).commit()
            if self._block.stage is Stage.RELEASED:
                self._let_go()
            return
        if not self.is_open:
            self._after_the_end()
            return
        if self.is_commit_owned_by_caller and self._block.stage is Stage.OPEN:
            self._write()
        if self._is_released:
            # No message is left to send.
            return
        if self.is_commit_owned_by_caller and self._block.stage is Stage.ROW_WRITTEN:
            self._commit_below()
            return
        try:
            self._block.refuse_commit()
        finally:
            # For SQLAlchemy this transaction has ended, so it would not roll back.
            self.poison()

    def after_session_commits(self) -> None:
        """Report the commit of a test's session, which released a savepoint."""
        if self._is_joined and self._block.stage is Stage.ROW_WRITTEN:
            self._block.stage = Stage.COMMITTED
            self._end(Ending.COMMITTED)
            self._let_go()

    def after_session_rolls_back(self) -> None:
        """Report the rollback of a test's session, which went to a savepoint."""
        if self._is_joined:
            self.before_connection_rolls_back()

    def _after_the_end(self) -> None:
        """Refuse on a poisoned connection until a rollback has replaced its driver connection."""
        if self._block.stage is Stage.POISONED and self._link.connection.invalidated:
            self._block.refuse_commit()
        self._let_go()

    def before_connection_rolls_back(self) -> None:
        """Record that the transaction was rolled back by the caller."""
        if self._block.stage in {Stage.OPEN, Stage.ROW_WRITTEN}:
            self._block.stage = Stage.ROLLED_BACK
            self._end(Ending.ROLLED_BACK)
        self._let_go()

    def _write(self) -> None:
        if self._before_commit is None:
            self._block.refuse_commit()
        try:
            self._before_commit()
        except BaseException:
            # Otherwise a second commit() would succeed without the row.
            if self._block.stage is not Stage.POISONED:
                self.poison()
            raise

    def _commit_below(self) -> None:
        try:
            run(self._block.commit(), DriverLink(self._link.connection))
        except OutcomeUnknown:
            self._end(Ending.UNKNOWN)
            raise
        except Exception:
            # The database refused, and committed nothing.
            self._end(Ending.ROLLED_BACK)
            self._let_go()
            raise
        self._end(Ending.COMMITTED)
        self._let_go()

    def _end(self, ending: Ending) -> None:
        ended, self._ended = self._ended, None
        if ended is not None and self.is_commit_owned_by_caller:
            ended(ending)

    def _let_go(self) -> None:
        for hook in self._hooks:
            if hook.current is self:
                hook.current = None


class _JoinedLink(SessionLink):
    """A test's session: its transaction is a savepoint in one that the test rolls back."""

    def close(self) -> None:
        """Keep the test's connection open; the session's commit is refused instead."""


def _check_session(session: Session) -> bool:
    """Refuse sessions whose commit does not commit; return whether the caller will commit."""
    if session.twophase:
        raise _two_phase()
    try:
        bind = session.get_bind()
    except UnboundExecutionError as error:
        raise _several_connections() from error
    if isinstance(bind, Connection) and JOINED not in session.info:
        raise RequestRefused(
            "commit_not_ours",
            "the session joins a connection's transaction, which others commit;"
            " in a test, escrowmq.testing.join_test allows it",
        )
    current = session.get_transaction()
    return current is not None and current.origin is SessionTransactionOrigin.BEGIN


def _check_one_connection(session: Session) -> None:
    """Refuse a session that has begun on several connections: their COMMITs are not atomic."""
    root = session.get_transaction()
    # Each connection is listed twice: by itself, and by its engine.
    begun = root._connections.values() if root is not None else ()  # noqa: SLF001
    if len({entry[0] for entry in begun}) > 1:
        raise _several_connections()


def _several_connections() -> RequestRefused:
    return RequestRefused(
        "several_connections",
        "the session commits its engines one by one: use one with the ledger's engine alone",
    )


def _two_phase() -> RequestRefused:
    return RequestRefused("commit_not_ours", "a two-phase transaction is committed by its manager")


def transaction_on(
    database: Any,  # noqa: ANN401 -- any of SQLAlchemy's classes, checked below
    row: Row,
    max_duration_ms: int,
) -> DatabaseTransaction:
    """Return the adapter for a sync session or connection."""
    if isinstance(database, scoped_session):
        database = database()
    if isinstance(database, Session | Connection):
        return SqlAlchemyTransaction(database, row, max_duration_ms)
    raise not_for_with(database)
