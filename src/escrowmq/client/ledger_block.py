"""A transaction block's part in the user's database: checks, the row, COMMIT; without I/O.

The steps are generators that name what is to be done next on the connection, so that they are
written once for drivers that are waited for and drivers that are awaited.  They keep the order:
the row is the last statement, COMMIT comes after it, and a block that failed can never commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from enum import Enum, auto
from typing import NamedTuple, NoReturn, TypeVar

from escrowmq.client import ledger_sql
from escrowmq.client.database_errors import Failure, failure_of
from escrowmq.client.ledger_sql import POSTGRESQL
from escrowmq.client.links import AsyncLink, Link, LinkFacts, Result
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable

#: A block that lasts longer may not write its row: a fence that stopped it might be gone by then.
MAX_DURATION_MS = 3_600_000

T = TypeVar("T")


class Execute(NamedTuple):
    """Run a statement."""

    sql: str
    parameters: tuple[str, ...] = ()


class Act(Enum):
    """What is done with a connection besides statements."""

    COMMIT = auto()
    ROLLBACK = auto()
    CLOSE = auto()


Steps = Generator[Execute | Act, Result, T]


class Stage(Enum):
    """How far a block has come."""

    NEW = auto()
    OPEN = auto()
    ROW_WRITTEN = auto()
    COMMITTING = auto()
    COMMITTED = auto()
    ROLLED_BACK = auto()
    #: Rolled back, and its connection made useless: nothing that follows on it can commit.
    POISONED = auto()
    #: COMMIT was issued, and nobody heard what came of it.
    UNKNOWN = auto()
    #: Nothing is to be written: the block sent no message.
    RELEASED = auto()


class RowFacts(NamedTuple):
    """What the row will say, and which ledger it is for."""

    transaction_id: str
    producer_group: str
    ledger_uuid: str

    def check(self) -> None:
        """Refuse names that a check could never look up."""
        for name in (self.transaction_id, self.producer_group):
            if not ledger_sql.is_name(name):
                raise RequestRefused(
                    "ledger_name_illegal", "1 to 255 printable characters", name=name
                )


class Block:
    """The stages of one block."""

    def __init__(
        self,
        facts: LinkFacts,
        row: RowFacts,
        *,
        has_hooks: bool,
        max_duration_ms: int = MAX_DURATION_MS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage = Stage.NEW
        self._facts = facts
        self._row = row
        # Without hooks only a mark in the transaction shows that it is still the same one.
        self._is_marked = not has_hooks or facts.dialect is POSTGRESQL
        self._max_duration_ms = max_duration_ms
        self._monotonic_s = monotonic_s
        self._began_at_s = 0.0
        self._began_at_ms = 0

    def begin(self, now_ms: int) -> Steps[None]:
        """Refuse at once what could not be kept to at the end."""
        self._row.check()
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
        is_postgresql = self._facts.dialect is POSTGRESQL
        try:
            if is_postgresql:
                probe = Execute(ledger_sql.PG_PROBE_AND_MARK, (self._row.transaction_id,))
            else:
                probe = Execute(self._facts.dialect.probe)
            found = yield probe
        except Exception as error:
            raise _unreadable(error) from error
        self._check_probe(found)
        if self._is_marked and not is_postgresql:
            # A savepoint with no transaction around it would commit when it is released.
            if not self._facts.is_in_transaction:
                yield Execute("BEGIN")
            yield Execute(ledger_sql.SQLITE_MARK)
        self.stage = Stage.OPEN

    def _check_probe(self, found: Result) -> None:
        uuids = [row[0] for row in found.rows]
        if uuids != [self._row.ledger_uuid]:
            raise _other_ledger(self._row.ledger_uuid, uuids)
        _, is_read_only, is_standby, *_ = found.rows[0]
        if is_read_only or is_standby:
            raise RequestRefused(
                "read_only_transaction", "the ledger's row cannot be written in it"
            )

    def insert_row(self, now_ms: int) -> Steps[None]:
        """Write the row.  If that fails, the transaction is rolled back for good."""
        try:
            self._check_may_insert(now_ms)
            yield from self._insert(now_ms)
        except EscrowError:
            yield from self.poison()
            raise
        except Exception as error:
            yield from self.poison()
            raise _not_written(error, self._row) from error
        except BaseException:
            yield from self.poison()
            raise
        self.stage = Stage.ROW_WRITTEN

    def _check_may_insert(self, now_ms: int) -> None:
        if self.stage is not Stage.OPEN:
            raise _ended_inside()
        # Either clock may stand still while a machine sleeps; the one that ran on is right.
        monotonic_ms = (self._monotonic_s() - self._began_at_s) * 1_000
        if max(monotonic_ms, now_ms - self._began_at_ms) > self._max_duration_ms:
            raise RequestRefused(
                "transaction_too_slow",
                "its row may not be written any more",
                max_duration_ms=self._max_duration_ms,
            )

    def _insert(self, now_ms: int) -> Steps[None]:
        row = self._row
        values = (row.transaction_id, row.producer_group, str(now_ms), row.ledger_uuid)
        if self._facts.dialect is POSTGRESQL:
            done = yield Execute(ledger_sql.PG_INSERT_MARKED, (*values, row.transaction_id))
        else:
            if self._is_marked:
                try:
                    yield Execute(ledger_sql.SQLITE_UNMARK)
                except Exception as error:
                    raise _ended_inside() from error
            done = yield Execute(ledger_sql.INSERT_COMMITTED, values)
        if done.row_count == 1:
            return
        if self._facts.dialect is POSTGRESQL:
            found = yield Execute(ledger_sql.PG_READ_MARK)
            if found.rows[0][0] != row.transaction_id:
                raise _ended_inside()
        raise _other_ledger(row.ledger_uuid, [])

    def commit(self) -> Steps[None]:
        """Issue COMMIT; whatever interrupts it leaves the outcome to the check."""
        if self.stage is Stage.RELEASED:
            # No message hangs on it, so its errors are the user's own.
            yield Act.COMMIT
            return
        assert self.stage is Stage.ROW_WRITTEN
        self.stage = Stage.COMMITTING
        try:
            yield Act.COMMIT
        except BaseException as error:
            # SQLite keeps a transaction open whose COMMIT failed, for anybody to commit later.
            yield from self._make_useless()
            self.stage = Stage.UNKNOWN
            raise OutcomeUnknown(
                "commit_unknown",
                "COMMIT was interrupted: the ledger's row will tell",
                transaction_id=self._row.transaction_id,
            ) from error
        self.stage = Stage.COMMITTED

    def rollback(self) -> Steps[None]:
        """Roll back; where even that fails, the connection ends, and the transaction with it."""
        if self.stage is Stage.POISONED:
            return
        assert self.stage not in {Stage.COMMITTING, Stage.COMMITTED, Stage.UNKNOWN}
        try:
            yield Act.ROLLBACK
        except Exception:  # noqa: BLE001 -- a connection that cannot roll back is of no use
            yield from self._make_useless()
        self.stage = Stage.ROLLED_BACK

    def poison(self) -> Steps[None]:
        """Roll back, and let nothing commit on this connection any more."""
        self.stage = Stage.POISONED
        yield from self._make_useless()

    def _make_useless(self) -> Steps[None]:
        # A connection that is broken already commits nothing either.
        with suppress(Exception):
            yield Act.CLOSE

    def refuse_commit(self) -> NoReturn:
        """Stop a commit that comes from somebody else."""
        if self.stage is Stage.POISONED:
            raise RequestRefused("transaction_poisoned", "it failed and can only be rolled back")
        raise _ended_inside()


def run(steps: Steps[T], link: Link) -> T:
    """Do the steps on a link that is waited for."""
    try:
        step = next(steps)
        while True:
            try:
                result = _perform(step, link)
            except BaseException as error:  # noqa: BLE001 -- the steps say what follows
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


async def run_async(steps: Steps[T], link: AsyncLink) -> T:
    """Do the steps on a link that is awaited."""
    try:
        step = next(steps)
        while True:
            try:
                result = await _perform_async(step, link)
            except BaseException as error:  # noqa: BLE001 -- as above
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


_NOTHING = Result((), 0)


def _perform(step: Execute | Act, link: Link) -> Result:
    match step:
        case Execute(sql, parameters):
            return link.execute(sql, parameters)
        case Act.COMMIT:
            link.commit()
        case Act.ROLLBACK:
            link.rollback()
        case Act.CLOSE:
            link.close()
    return _NOTHING


async def _perform_async(step: Execute | Act, link: AsyncLink) -> Result:
    match step:
        case Execute(sql, parameters):
            return await link.execute(sql, parameters)
        case Act.COMMIT:
            await link.commit()
        case Act.ROLLBACK:
            await link.rollback()
        case Act.CLOSE:
            await link.close()
    return _NOTHING


def _ended_inside() -> RequestRefused:
    return RequestRefused(
        "transaction_ended_inside",
        "the block's transaction may be committed and rolled back by the block alone",
    )


def _other_ledger(expected: str, found: list[str]) -> RequestRefused:
    return RequestRefused(
        "ledger_differs",
        "the connection leads to another database than the producer's ledger",
        expected=expected,
        found=found,
    )


def _unreadable(error: Exception) -> EscrowError:
    if failure_of(error) is Failure.NO_TABLE:
        return missing(error)
    return Unavailable("ledger_unreachable", cause=str(error))


def missing(error: Exception) -> RequestRefused:
    """Make the refusal of a database that has no ledger."""
    return RequestRefused("ledger_missing", "make it with ledger_table.create", cause=str(error))


def _not_written(error: Exception, row: RowFacts) -> EscrowError:
    match failure_of(error):
        case Failure.DUPLICATE:
            return RequestRefused(
                "transaction_fenced",
                "it took longer than its deadline, and the check has rolled it back",
                transaction_id=row.transaction_id,
            )
        case Failure.READ_ONLY:
            return RequestRefused("read_only_transaction", "the ledger's row cannot be written")
    return Unavailable("ledger_row_failed", "the transaction was rolled back", cause=str(error))
