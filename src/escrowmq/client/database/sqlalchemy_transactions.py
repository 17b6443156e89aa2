"""The user's transaction on SQLAlchemy's sync sessions and connections.

If the caller's own ``with`` block commits, our part runs in SQLAlchemy's events. A session's
``before_commit`` also fires for savepoints, and no event fires after a connection's COMMIT. So we
use the connection's ``commit`` event, which fires only for the outermost level. There we issue the
driver's COMMIT ourselves and check its result. SQLAlchemy's own COMMIT then has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection, TwoPhaseTransaction, event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction, SessionTransactionOrigin, scoped_session

from escrowmq.client.database import block
from escrowmq.client.database.block import BlockStage, BlockTerms
from escrowmq.client.database.connections import SessionConnection, SqlAlchemyConnection
from escrowmq.client.database.ledger_sql import not_for_with
from escrowmq.client.database.open_blocks import already_open
from escrowmq.client.database.sqlalchemy_driver import DriverConnection
from escrowmq.client.database.transactions import BlockTransaction, TransactionEnding
from escrowmq.client.trampoline import driven, run
from escrowmq.model.errors import OutcomeUnknown, RequestRefused

if TYPE_CHECKING:
    from escrowmq.client.database.block import BlockRow, Steps


class _Hooks:
    """Listeners of a session or connection, with the block that it is currently in.

    They are added once per object and stay: a listener that removes itself while it is called
    breaks SQLAlchemy's loop over the listeners.
    """

    def __init__(self, target: Session | Connection) -> None:
        self.current: SqlAlchemyTransaction | None = None
        for name, method in (
            _SESSION_EVENTS if isinstance(target, Session) else _CONNECTION_EVENTS
        ).items():
            event.listen(target, name, partial(self._happened, method))

    def _happened(self, method: str, *given: object) -> None:
        if self.current is not None:
            getattr(self.current, method)(*given)


_ATTRIBUTE = "_escrowmq_hooks"
#: Key in the ``info`` of a session that joins a test's transaction; ``escrowmq.testing`` sets it.
JOINED = "escrowmq_joins_test"
#: By event: the method of ``SqlAlchemyTransaction`` that it calls.
_SESSION_EVENTS = {
    "before_commit": "before_session_commits",
    "after_begin": "after_connection_joins",
    "after_transaction_create": "after_transaction_begins",
    "after_commit": "after_session_commits",
    "after_soft_rollback": "after_session_rolls_back",
}
_CONNECTION_EVENTS = {
    "commit": "before_connection_commits",
    "rollback": "before_connection_rolls_back",
}


def _hooks_of(target: Session | Connection) -> _Hooks:
    hooks: _Hooks | None = vars(target).get(_ATTRIBUTE)
    if hooks is None:
        hooks = _Hooks(target)
        setattr(target, _ATTRIBUTE, hooks)
    return hooks


class SqlAlchemyTransaction(BlockTransaction):
    """Adapter for a sync session or connection."""

    _connection: SqlAlchemyConnection

    def __init__(self, database: Session | Connection, row: BlockRow, max_duration_ms: int) -> None:
        self.is_commit_owned_by_caller = False
        self._database = database
        self._row = row
        self._max_duration_ms = max_duration_ms
        self._before_commit: Callable[[], None] | None = None
        self._ended: Callable[[TransactionEnding], None] | None = None
        self._hooks: list[_Hooks] = []
        self._is_joined = False

    @driven
    def begin(self, now_ms: int) -> Steps[None]:
        """Begin, refuse what cannot work, and attach to the events."""
        self.check_outermost()
        database = self._database
        if isinstance(database, Session):
            self.is_commit_owned_by_caller = _check_session(database)
            self._is_joined = JOINED in database.info
            self._connection = (_JoinedConnection if self._is_joined else SessionConnection)(
                database
            )
            _check_one_connection(database)
        else:
            if isinstance(database.get_transaction(), TwoPhaseTransaction):
                raise _two_phase()
            # SQLAlchemy sets this in "with connection.begin()" and "with engine.begin()".
            self.is_commit_owned_by_caller = database._trans_context_manager is not None  # noqa: SLF001
            self._connection = SqlAlchemyConnection(database)
        hooks = [_hooks_of(target) for target in {database, self._connection.connection}]
        if any(hook.current is not None and hook.current.is_open for hook in hooks):
            raise already_open()
        self._block = self._row.block(
            BlockTerms(self._connection, has_hooks=True, max_duration_ms=self._max_duration_ms)
        )
        yield from self._begin(self._connection.connection.connection.driver_connection, now_ms)
        for hook in hooks:
            hook.current = self
        self._hooks = hooks

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._block.stage in {BlockStage.OPEN, BlockStage.ROW_WRITTEN, BlockStage.COMMITTING}

    def check_outermost(self) -> None:
        """Refuse while a savepoint is open: its rollback would not withdraw a message."""
        if self._database.in_nested_transaction():
            raise RequestRefused(
                "savepoint_open", "only at the outermost level, outside savepoints"
            )

    def insert_row(self, now_ms: int) -> None:
        """Write the ledger row as the last statement."""
        self._soon.end()
        if self._block.stage is BlockStage.OPEN:
            try:
                self.check_outermost()
                if isinstance(self._database, Session):
                    self._database.flush()
                    _check_one_connection(self._database)
            except BaseException:
                self.poison()
                raise
        try:
            super().insert_row(now_ms)
        except BaseException:
            self._end(TransactionEnding.ROLLED_BACK)
            raise

    @driven
    def commit(self) -> Steps[None]:
        """Commit, or raise: OutcomeUnknown, or the driver's own error if nothing was committed."""
        try:
            yield from self._block.commit()
        except BaseException:
            if self._block.stage is BlockStage.ROLLED_BACK:
                self._let_go()
            raise
        self._let_go()

    def poison(self) -> None:
        """Roll back and discard the driver's connection; SQLAlchemy then allows only a rollback."""
        super().poison()
        self._end(TransactionEnding.ROLLED_BACK)

    def release(self) -> None:
        """Write no row, because nothing is sent. Detach, unless our block still has to commit."""
        self._soon.take()
        self._block.stage = BlockStage.RELEASED
        if self.is_commit_owned_by_caller:
            self._let_go()

    def on_before_commit(self, callback: Callable[[], None]) -> None:
        """Register the callback to call just before the caller's outermost COMMIT."""
        self._before_commit = callback

    def on_ended(self, callback: Callable[[TransactionEnding], None]) -> None:
        """Register a callback for the end of a transaction that the caller commits."""
        self._ended = callback

    @property
    def _is_released(self) -> bool:
        return self._block.stage is BlockStage.RELEASED

    def after_transaction_begins(self, session: Session, begun: SessionTransaction) -> None:
        """Begin a new savepoint in the database now; SQLAlchemy would wait for a statement."""
        if self.is_open and begun.nested:
            # Otherwise a mark would come before the savepoint.
            session.connection()

    def after_connection_joins(
        self, _session: Session, _begun: SessionTransaction, connection: Connection
    ) -> None:
        """Refuse a second connection before anything is written on it."""
        if self.is_open and connection is not self._connection.connection:
            raise _several_connections()

    def before_session_commits(self, session: Session) -> None:
        """Write our row while the session can still flush; refuse a commit inside our block."""
        if session.in_nested_transaction():
            return
        if self._is_joined and self._block.stage is BlockStage.POISONED:
            self._block.refuse_commit()
        if not self.is_open or self._block.stage is BlockStage.COMMITTING:
            return
        if not self.is_commit_owned_by_caller:
            self._block.refuse_commit()
        if self._block.stage is BlockStage.OPEN:
            self._write()

    def before_connection_commits(self, _connection: Connection) -> None:
        """Issue our COMMIT, or the caller's after our row; refuse any other of an open block."""
        if self._block.stage in {BlockStage.COMMITTING, BlockStage.RELEASED}:
            # Commit here: an error of this call is the database's. One from SQLAlchemy may be a
            # listener's.
            DriverConnection(self._connection.connection).commit()
            if self._block.stage is BlockStage.RELEASED:
                self._let_go()
            return
        if not self.is_open:
            self._after_the_end()
            return
        if self.is_commit_owned_by_caller and self._block.stage is BlockStage.OPEN:
            self._write()
        if self._is_released:
            # No message is left to send, so SQLAlchemy commits by itself.
            return
        if self.is_commit_owned_by_caller and self._block.stage is BlockStage.ROW_WRITTEN:
            self._commit_below()
            return
        try:
            self._block.refuse_commit()
        finally:
            # SQLAlchemy considers the transaction ended, so it would not roll it back.
            self.poison()

    def after_session_commits(self, session: Session) -> None:
        """Report the commit of a session that joined a test: it only released a savepoint."""
        is_written = self._is_joined and self._block.stage is BlockStage.ROW_WRITTEN
        if is_written and not session.in_nested_transaction():
            self._block.stage = BlockStage.COMMITTED
            self._end(TransactionEnding.COMMITTED)
            self._let_go()

    def after_session_rolls_back(self, _session: Session, ended: SessionTransaction) -> None:
        """Report the rollback of a session that joined a test: it went back to a savepoint."""
        if self._is_joined and ended.parent is None:
            self.before_connection_rolls_back(self._connection.connection)

    def _after_the_end(self) -> None:
        """Refuse a commit until a rollback has replaced a poisoned connection; then detach."""
        if self._block.stage is BlockStage.POISONED and self._connection.connection.invalidated:
            self._block.refuse_commit()
        self._let_go()

    def before_connection_rolls_back(self, _connection: Connection) -> None:
        """Record that the transaction is being rolled back, and detach."""
        if self._block.stage in {BlockStage.OPEN, BlockStage.ROW_WRITTEN}:
            self._block.stage = BlockStage.ROLLED_BACK
            self._end(TransactionEnding.ROLLED_BACK)
        self._let_go()

    def _write(self) -> None:
        if self._before_commit is None:
            self._block.refuse_commit()
        try:
            self._before_commit()
        except BaseException:
            # Otherwise a second commit() would succeed without the row.
            if self._block.stage is not BlockStage.POISONED:
                self.poison()
            raise

    def _commit_below(self) -> None:
        try:
            below = DriverConnection(self._connection.connection)
            run(self._block.commit(), lambda step: block.perform(step, below))
        except OutcomeUnknown:
            self._end(TransactionEnding.UNKNOWN)
            raise
        except Exception:
            # The database refused, and committed nothing.
            self._end(TransactionEnding.ROLLED_BACK)
            self._let_go()
            raise
        self._end(TransactionEnding.COMMITTED)
        self._let_go()

    def _end(self, ending: TransactionEnding) -> None:
        ended, self._ended = self._ended, None
        if ended is not None and self.is_commit_owned_by_caller:
            ended(ending)

    def _let_go(self) -> None:
        for hook in self._hooks:
            if hook.current is self:
                hook.current = None


class _JoinedConnection(SessionConnection):
    """A session that joined a test: its transaction is a savepoint, and the test rolls all back."""

    def close(self) -> None:
        """Keep the test's connection open; a poisoned session's commit is refused instead."""


def _check_session(session: Session) -> bool:
    """Refuse a session whose commit() issues no COMMIT; return whether the caller will commit."""
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


def transaction_on(database: object, row: BlockRow, max_duration_ms: int) -> SqlAlchemyTransaction:
    """Return the adapter for a sync session or connection."""
    if isinstance(database, scoped_session):
        database = database()
    if isinstance(database, Session | Connection):
        return SqlAlchemyTransaction(database, row, max_duration_ms)
    raise not_for_with(database)
