"""A block's part in the user's database: checks, a row of ours, COMMIT; without I/O.

The subclasses write the row: ``producer_block.py`` of ``ledger/`` for a producer,
``consumed_block.py`` for a consumer. The steps are generators that yield the next operation for the
connection, so that sync and async drivers share them. They enforce the order: the row is the last
statement, COMMIT follows it, and a failed block can never commit.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from escrowmq.client.database import ledger_sql, savepoint_marks
from escrowmq.client.database.connections import ConnectionFacts, Result
from escrowmq.client.database.errors import CommitRefused, Failure, aborted, failure_of
from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.client.trampoline import SyncOrAsync
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused

#: Maximum duration of a block. A slower one may not write its row: the fence that would stop it
#: is kept for a limited time.
MAX_DURATION_MS = 3_600_000

T = TypeVar("T")


class Execute(NamedTuple):
    """Run a statement."""

    sql: str
    parameters: tuple[str, ...] = ()


class Act(Enum):
    """A connection's method other than ``execute``."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    CLOSE = "close"


Steps = Generator[Execute | Act, Result, T]


class BlockStage(Enum):
    """Progress of a block."""

    NEW = auto()
    OPEN = auto()
    ROW_WRITTEN = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()
    #: Rolled back, with its connection closed: nothing can commit on it any more.
    POISONED = auto()
    #: COMMIT was issued, and its outcome is not known.
    UNKNOWN = auto()
    #: The block sent no message, so it writes no row.
    RELEASED = auto()


class BlockTerms(NamedTuple):
    """Facts about a block's connection, and the block's maximum duration."""

    facts: ConnectionFacts
    #: Whether the block learns of each COMMIT on the connection.
    has_hooks: bool
    max_duration_ms: int = MAX_DURATION_MS


class BlockRow(Protocol):
    """The facts for a row that a block writes into a table of EscrowMQ."""

    def block(self, terms: BlockTerms) -> DatabaseBlock:
        """Make the block that writes this row."""


class DatabaseBlock(ABC):
    """State machine of one block; subclasses define its row."""

    def __init__(
        self,
        terms: BlockTerms,
        names: dict[str, str],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage = BlockStage.NEW
        self._facts = terms.facts
        #: Facts that the block's errors carry, such as the transaction's id.
        self._names = names
        # Without hooks, only a mark shows that the caller has not begun another transaction.
        self._is_marked = not terms.has_hooks or terms.facts.dialect is POSTGRESQL
        self._max_duration_ms = terms.max_duration_ms
        self._monotonic_s = monotonic_s
        self._is_any_marked = False
        #: Numbers of the messages whose savepoints had not been rolled back at the last look.
        self.surviving: frozenset[int] = frozenset()
        self._began_at_s = 0.0
        self._began_at_ms = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether the block has not ended yet."""
        return self.stage in {
            BlockStage.NEW,
            BlockStage.OPEN,
            BlockStage.ROW_WRITTEN,
            BlockStage.COMMITTING,
        }

    def begin(self, now_ms: int) -> Steps[None]:
        """Open the block; refuse early what could not commit safely at the end."""
        self._check_names()
        self._began_at_s = self._monotonic_s()
        self._began_at_ms = now_ms
        if self._facts.is_in_callers_block:
            raise RequestRefused(
                "commit_not_ours", "the driver's own block will commit, and it has no hook for us"
            )
        if self._facts.is_autocommit:
            raise RequestRefused(
                "autocommit_connection", "each statement commits by itself: turn autocommit off"
            )
        yield from self._open()
        self.stage = BlockStage.OPEN

    @abstractmethod
    def _check_names(self) -> None:
        """Refuse names that the database could not return unchanged."""

    @abstractmethod
    def _open(self) -> Steps[None]:
        """Check that the row can be written, or insert it unfinished, and mark the transaction."""

    @abstractmethod
    def _write(self, now_ms: int) -> Steps[None]:
        """Write the row, but only in the transaction that was opened."""

    @abstractmethod
    def _not_written(self, error: Exception) -> EscrowError:
        """Return the error to raise for the database's error."""

    def _mark_sqlite(self) -> Steps[None]:
        # Python's driver begins a transaction only before the first write. Without a transaction,
        # releasing a savepoint, ours or the user's, would commit.
        if not self._facts.is_in_transaction:
            yield Execute("BEGIN")
        if self._is_marked:
            yield Execute(ledger_sql.SQLITE_MARK)

    def _unmark_sqlite(self) -> Steps[None]:
        if self._is_marked and self._facts.dialect is not POSTGRESQL:
            try:
                yield Execute(ledger_sql.SQLITE_UNMARK)
            except Exception as error:
                raise ended_inside() from error

    def mark(self, numbers: Iterable[int]) -> Steps[None]:
        """Mark messages in the currently open savepoint."""
        self.check_open()
        self.note_marked()
        try:
            for statement in savepoint_marks.marking(self._facts.dialect, numbers):
                yield Execute(*statement)
        except Exception as error:
            if failure_of(error) is Failure.ABORTED:
                raise aborted() from error
            raise

    def note_marked(self) -> None:
        """Remember that messages have marks, so that the end of the block reads them."""
        self._is_any_marked = True

    def check_open(self) -> None:
        """Refuse unless the block has begun and has neither written its row nor ended."""
        if self.stage is not BlockStage.OPEN:
            raise ended_inside()

    def look_for_marks(self) -> Steps[frozenset[int]]:
        """Return the numbers of the messages whose savepoints were not rolled back."""
        self.check_open()
        self.surviving = frozenset()
        if self._is_any_marked:
            self.surviving = yield from self._read_marks()
        return self.surviving

    def _read_marks(self) -> Steps[frozenset[int]]:
        dialect = self._facts.dialect
        *before, last = savepoint_marks.reading(dialect)
        for statement in before:
            yield Execute(*statement)
        found = yield Execute(*last)
        return savepoint_marks.numbers_in(dialect, found)

    def _forget_marks(self) -> Steps[None]:
        """Delete the marks; refuse if they have changed since the messages were held."""
        if not self._is_any_marked:
            return
        found = yield from self._read_marks()
        if found != self.surviving:
            raise ended_inside()
        yield Execute(*savepoint_marks.forgetting(self._facts.dialect))

    def insert_row(self, now_ms: int) -> Steps[None]:
        """Write the row. If that fails, roll back and make the connection unusable."""
        yield from undone(self._insert(now_ms), self.poison, self._not_written)
        self.stage = BlockStage.ROW_WRITTEN

    def _insert(self, now_ms: int) -> Steps[None]:
        self._check_may_insert(now_ms)
        yield from self._forget_marks()
        yield from self._unmark_sqlite()
        yield from self._write(now_ms)

    def _check_may_insert(self, now_ms: int) -> None:
        self.check_open()
        # The monotonic clock may stop while the machine sleeps, and the wall clock may be set back:
        # use the one that advanced more.
        monotonic_ms = (self._monotonic_s() - self._began_at_s) * 1_000
        if max(monotonic_ms, now_ms - self._began_at_ms) > self._max_duration_ms:
            raise RequestRefused(
                "transaction_too_slow",
                "its row can no longer be written",
                max_duration_ms=self._max_duration_ms,
            )

    def commit(self) -> Steps[None]:
        """Issue COMMIT; raise OutcomeUnknown if it fails or is interrupted: a back-check finds out.

        The driver's own error is raised if nothing was committed, or if no message depends on it.
        """
        if self.stage is BlockStage.RELEASED:
            # No message depends on this commit, so its errors are the user's own.
            try:
                yield Act.COMMIT
            except CommitRefused as refused:
                raise refused.error from None
            return
        assert self.stage is BlockStage.ROW_WRITTEN
        self.stage = BlockStage.COMMITTING
        try:
            self._check_still_open()
            yield Act.COMMIT
        except CommitRefused as refused:
            # The database has rolled back already; this makes a session expire its objects.
            self.stage = BlockStage.ROLLED_BACK
            yield from self._roll_back()
            raise refused.error from None
        except BaseException as error:
            # SQLite keeps a transaction open after a failed COMMIT. Close the connection, so that
            # no later COMMIT can succeed.
            yield from self._make_useless()
            self.stage = BlockStage.UNKNOWN
            raise OutcomeUnknown(
                "commit_unknown",
                "COMMIT was interrupted: the row in the database shows its outcome",
                **self._names,
            ) from error
        self.stage = BlockStage.COMMITTED

    def _check_still_open(self) -> None:
        # Another task or thread may have committed or rolled back since the row was written.
        if not self._facts.is_in_transaction:
            raise ended_inside()

    def rollback(self) -> Steps[None]:
        """Roll back. If that fails, close the connection, which ends the transaction."""
        if self.stage is BlockStage.POISONED:
            return
        assert self.stage not in {BlockStage.COMMITTING, BlockStage.COMMITTED, BlockStage.UNKNOWN}
        yield from self._roll_back()
        self.stage = BlockStage.ROLLED_BACK

    def _roll_back(self) -> Steps[None]:
        try:
            yield Act.ROLLBACK
        except Exception:  # noqa: BLE001 -- a connection that cannot roll back is unusable
            yield from self._make_useless()

    def poison(self) -> Steps[None]:
        """Roll back and close, so that nothing can commit on this connection any more."""
        self.stage = BlockStage.POISONED
        yield from self._make_useless()

    def _make_useless(self) -> Steps[None]:
        # A connection that fails to close is broken, and cannot commit either.
        with suppress(Exception):
            yield Act.CLOSE

    def refuse_commit(self) -> NoReturn:
        """Stop a commit that the block did not issue."""
        if self.stage is BlockStage.POISONED:
            raise RequestRefused("transaction_poisoned", "it failed and can only be rolled back")
        raise ended_inside()


def undone(
    steps: Steps[None], undo: Callable[[], Steps[None]], named: Callable[[Exception], EscrowError]
) -> Steps[None]:
    """Run steps; after any error, also Ctrl-C, undo them. Raise a driver's error as EscrowError."""
    try:
        yield from steps
    except BaseException as error:
        yield from undo()
        if isinstance(error, Exception) and not isinstance(error, EscrowError):
            raise named(error) from error
        raise


def perform(step: Execute | Act, connection: Any) -> SyncOrAsync:  # noqa: ANN401 -- sync or async, too
    """Perform a step on a connection."""
    return (
        connection.execute(*step)
        if isinstance(step, Execute)
        else getattr(connection, step.value)()
    )


def ended_inside() -> RequestRefused:
    """Return the refusal for a block whose transaction was ended by other code."""
    return RequestRefused(
        "transaction_ended_inside",
        "the block's transaction may be committed and rolled back by the block alone",
    )
