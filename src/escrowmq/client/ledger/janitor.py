"""The janitor: it deletes ledger rows that no back-check will need again.

A row is deleted when the broker says that its transaction is durably decided, with the outcome that
the row has. A row that contradicts the broker is evidence and stays. A fence row also stays for
seven days, because a slow transaction must still collide with it; the SDK writes no row after
``MAX_DURATION_MS``, far below that. If a broker cannot be asked, the sweep ends. Every sweep
leaves a mark of the history in which the transactions were decided (``ledger/marks.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from escrowmq.client.database import ledger_sql
from escrowmq.client.database.connections import DatabaseConnection, ResultRow
from escrowmq.client.database.databases import Opener, reading, writing
from escrowmq.client.database.ledger_sql import is_name
from escrowmq.client.ledger.marks import write_marks
from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.lineage import Sight

FENCE_KEPT_MS = 7 * 24 * 3_600_000
#: Maximum number of rows in one question to the brokers.
PAGE_ROWS_MAX = 256


class Confirmed(NamedTuple):
    """The brokers' answer about some transactions."""

    #: Durably decided transactions, by id.
    outcomes: Mapping[str, LedgerOutcome]
    #: The brokers' histories, each seen after the transactions were confirmed.
    sights: Sequence[Sight]


Confirm = Callable[[Sequence[str]], Confirmed]
"""Asks the brokers which transactions are decided. Raises if a broker cannot be asked."""


def sweep(opener: Opener, confirm: Confirm, *, ledger_uuid: str) -> int:
    """Sweep the whole ledger once; return the number of deleted rows."""
    deleted = 0
    with opener() as connection:
        for page in pages(connection, ledger_uuid):
            candidates = [row for row in page.rows if not _is_kept(row, page.now_ms)]
            if not candidates:
                continue
            confirmed = confirm([row[0] for row in candidates])
            ids = {
                outcome: [
                    key
                    for key, written, _ in candidates
                    if written == outcome and confirmed.outcomes.get(key) == outcome
                ]
                for outcome in (LedgerOutcome.COMMITTED, LedgerOutcome.ROLLED_BACK)
            }
            deleted += _delete(connection, ids, confirmed.sights)
    return deleted


def forget_consumed(opener: Opener, before_ms: int) -> int:
    """Delete the records of messages that were consumed before this time; return how many.

    A message delivered again after that is not recognized, so keep records longer than retries
    last.
    """
    with opener() as connection, writing(connection):
        return connection.execute(ledger_sql.FORGET_CONSUMED, [str(before_ms)]).row_count


def _is_kept(row: ResultRow, now_ms: int) -> bool:
    transaction_id, outcome, written_at_ms = row
    if not is_name(transaction_id):
        # Keep a row that the SDK did not write.
        return True
    return bool(outcome == LedgerOutcome.ROLLED_BACK and now_ms - written_at_ms < FENCE_KEPT_MS)


class LedgerPage(NamedTuple):
    """One page of a ledger's rows."""

    #: Each row has the id, the outcome and the time when it was written.
    rows: Sequence[ResultRow]
    #: The database's clock, which also sets the times of fences.
    now_ms: int


def pages(connection: DatabaseConnection, ledger_uuid: str) -> Iterator[LedgerPage]:
    """Yield the ledger's pages in primary key order, which needs no other index."""
    last = ""
    while True:
        with reading(connection):
            found = connection.execute(connection.dialect.probe).rows
            if len(found) != 1 or found[0][0] != ledger_uuid:
                raise RequestRefused(
                    "ledger_differs", "this is another ledger", expected=ledger_uuid
                )
            now_ms = connection.execute(connection.dialect.now_ms).rows[0][0]
            rows = connection.execute(ledger_sql.PAGE_SQL.format(limit=PAGE_ROWS_MAX), [last]).rows
        if not rows:
            return
        yield LedgerPage(rows, int(now_ms))
        last = rows[-1][0]


def _delete(
    connection: DatabaseConnection,
    ids: Mapping[LedgerOutcome, Sequence[str]],
    sights: Sequence[Sight],
) -> int:
    """Delete rows, and in the same transaction record the history in which they were decided."""
    if not any(ids.values()):
        return 0
    with writing(connection):
        write_marks(connection, sights)
        return sum(
            connection.execute(
                connection.dialect.delete, [outcome, connection.dialect.pack(some)]
            ).row_count
            for outcome, some in ids.items()
            if some
        )
