"""A producer's block: the ledger row is the last statement of the user's transaction."""

from __future__ import annotations

from typing import NamedTuple

from escrowmq.client.database import ledger_sql
from escrowmq.client.database.block import BlockTerms, DatabaseBlock, Execute, Steps, ended_inside
from escrowmq.client.database.connections import Result
from escrowmq.client.database.errors import Failure, aborted, failure_of
from escrowmq.client.database.ledger_sql import POSTGRESQL
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable


class RowFacts(NamedTuple):
    """The contents of a ledger row, and the ledger it is for."""

    transaction_id: str
    producer_group: str
    ledger_uuid: str

    def check(self) -> None:
        """Refuse names that a back-check could never look up."""
        for name in (self.transaction_id, self.producer_group):
            if not ledger_sql.is_name(name):
                raise RequestRefused(
                    "ledger_name_illegal", "1 to 255 printable characters", name=name
                )

    def block(self, terms: BlockTerms) -> DatabaseBlock:
        """Make the block that writes this row."""
        return LedgerBlock(terms, self)


class LedgerBlock(DatabaseBlock):
    """Block that records the commit in the ledger that the half messages name."""

    def __init__(self, terms: BlockTerms, row: RowFacts) -> None:
        super().__init__(terms, {"transaction_id": row.transaction_id})
        self._row = row

    def _check_names(self) -> None:
        self._row.check()

    def _open(self) -> Steps[None]:
        is_postgresql = self._facts.dialect is POSTGRESQL
        try:
            if is_postgresql:
                probe = Execute(ledger_sql.PG_PROBE_AND_MARK, (self._row.transaction_id,))
            else:
                probe = Execute(self._facts.dialect.probe)
            found = yield probe
        except Exception as error:
            raise unreadable(error) from error
        self._check_probe(found)
        if not is_postgresql:
            yield from self._mark_sqlite()

    def _check_probe(self, found: Result) -> None:
        uuids = [row[0] for row in found.rows]
        if uuids != [self._row.ledger_uuid]:
            raise _other_ledger(self._row.ledger_uuid, uuids)
        _, is_read_only, is_standby, *_ = found.rows[0]
        if is_read_only or is_standby:
            raise RequestRefused(
                "read_only_transaction", "the ledger's row cannot be written in it"
            )

    def look_for_marks(self) -> Steps[frozenset[int]]:
        """Return the numbers of the messages whose savepoints were not rolled back.

        A COMMIT by hand deletes the marks as well, but keeps the user's rows. If a message
        survives, writing the ledger row detects that. Otherwise no row will be written, so the
        check is here.
        """
        surviving = yield from super().look_for_marks()
        if self._is_any_marked and not surviving:
            yield from self._check_same_transaction()
        return surviving

    def _check_same_transaction(self) -> Steps[None]:
        if self._facts.dialect is not POSTGRESQL:
            if self._is_marked:
                yield from self._unmark_sqlite()
                yield from self._mark_sqlite()
            return
        found = yield Execute(ledger_sql.PG_READ_MARK)
        if found.rows[0][0] != self._row.transaction_id:
            raise ended_inside()

    def _write(self, now_ms: int) -> Steps[None]:
        yield from self._insert_committed(now_ms)

    def _insert_committed(self, now_ms: int) -> Steps[None]:
        row = self._row
        values = (row.transaction_id, row.producer_group, str(now_ms), row.ledger_uuid)
        if self._facts.dialect is POSTGRESQL:
            done = yield Execute(ledger_sql.PG_INSERT_MARKED, (*values, row.transaction_id))
        else:
            done = yield Execute(ledger_sql.INSERT_COMMITTED, values)
        if done.row_count == 1:
            return
        if self._facts.dialect is POSTGRESQL:
            yield from self._check_same_transaction()
        raise _other_ledger(row.ledger_uuid, [])

    def _not_written(self, error: Exception) -> EscrowError:
        match failure_of(error):
            case Failure.DUPLICATE:
                return RequestRefused(
                    "transaction_fenced",
                    "it took longer than its deadline, and the check has rolled it back",
                    transaction_id=self._row.transaction_id,
                )
            case Failure.ABORTED:
                return aborted()
            case Failure.READ_ONLY:
                return RequestRefused("read_only_transaction", "the ledger's row cannot be written")
        return Unavailable("ledger_row_failed", "the transaction was rolled back", cause=str(error))


def _other_ledger(expected: str, found: list[str]) -> RequestRefused:
    return RequestRefused(
        "ledger_differs",
        "the connection leads to another database than the producer's ledger",
        expected=expected,
        found=found,
    )


def unreadable(error: Exception) -> EscrowError:
    """Return the error for a ledger that could not be read."""
    return known_error(error) or Unavailable("ledger_unreachable", cause=str(error))


def known_error(error: Exception) -> EscrowError | None:
    """Return our error for a missing table or a failed transaction, or None."""
    match failure_of(error):
        case Failure.NO_TABLE:
            return missing(error)
        case Failure.ABORTED:
            return aborted()
    return None


def missing(error: Exception) -> RequestRefused:
    """Return the refusal for a database that has no ledger."""
    return RequestRefused("ledger_missing", "make it with SqlLedger(…).create()", cause=str(error))
