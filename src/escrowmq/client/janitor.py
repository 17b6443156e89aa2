"""Takes rows out of the ledger that nobody will ask for again.

A row goes when the broker says that its transaction is durably decided, and decided as the row
says: a contradiction is evidence and stays.  A fence row also stays for seven days, because a slow
transaction must still run into it when it comes back; the SDK writes no row after
``MAX_DURATION_MS``, far below that.  If the broker cannot be asked, nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from escrowmq.client import ledger_sql
from escrowmq.client.databases import Opener, reading, writing
from escrowmq.client.ledger_checks import Outcome
from escrowmq.client.ledger_sql import is_name
from escrowmq.client.links import Link, Row
from escrowmq.model.errors import RequestRefused

FENCE_KEPT_MS = 7 * 24 * 3_600_000
#: Rows that the broker is asked about at a time.
PAGE_ROWS_MAX = 256

Decided = Callable[[Sequence[str]], Mapping[str, Outcome]]
"""Asks the broker: which of these are durably decided, and how.  Raises if it cannot be asked."""


def sweep(opener: Opener, decided: Decided, *, ledger_uuid: str, now_ms: int) -> int:
    """Go once through the whole ledger; return how many rows were deleted."""
    deleted = 0
    with opener() as link:
        for page in pages(link, ledger_uuid):
            candidates = [row for row in page if not _is_kept(row, now_ms)]
            if not candidates:
                continue
            decisions = decided([row[0] for row in candidates])
            for outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
                ids = [
                    row[0]
                    for row in candidates
                    if row[1] == outcome and decisions.get(row[0]) == outcome
                ]
                deleted += _delete(link, ids, outcome)
    return deleted


def forget_consumed(opener: Opener, before_ms: int) -> int:
    """Delete the messages that were consumed before; return how many.

    One that comes again after that is not recognised, so keep them longer than retries last.
    """
    with opener() as link, writing(link):
        return link.execute(ledger_sql.FORGET_CONSUMED, [str(before_ms)]).row_count


def _is_kept(row: Row, now_ms: int) -> bool:
    transaction_id, outcome, written_at_ms = row
    if not is_name(transaction_id):
        # Nobody of ours wrote it.
        return True
    return bool(outcome == Outcome.ROLLED_BACK and now_ms - written_at_ms < FENCE_KEPT_MS)


def pages(link: Link, ledger_uuid: str) -> Iterator[Sequence[Row]]:
    """The ledger in the order of its primary key, which needs no index beside it.

    A row is id, outcome and when it was written.
    """
    last = ""
    while True:
        with reading(link):
            found = link.execute(link.dialect.probe).rows
            if len(found) != 1 or found[0][0] != ledger_uuid:
                raise RequestRefused(
                    "ledger_differs", "this is another ledger", expected=ledger_uuid
                )
            page = link.execute(ledger_sql.PAGE_SQL.format(limit=PAGE_ROWS_MAX), [last]).rows
        if not page:
            return
        yield page
        last = page[-1][0]


def _delete(link: Link, ids: Sequence[str], outcome: Outcome) -> int:
    if not ids:
        return 0
    with writing(link):
        return link.execute(link.dialect.delete, [outcome, link.dialect.pack(ids)]).row_count
