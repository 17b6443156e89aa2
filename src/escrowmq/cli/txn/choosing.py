"""Selects the transactions that ``txn commit|rollback --filter`` takes, with a matching message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.cli.txn.asking import transaction_pages
from escrowmq.cli.txn.messages import Previews, previews_of
from escrowmq.protocol.native import previews
from escrowmq.protocol.native.previews import PreviewRow

if TYPE_CHECKING:
    from escrowmq.cli.txn.filter import TransactionFilter
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.rows import TransactionRow

#: Messages of each transaction in the first request, which covers a whole page.
MESSAGES_AT_FIRST = 4
#: Outcomes of a transaction that was not decided, or may not have been.
REFUSED, UNKNOWN, NOT_TRIED = "refused", "unknown", "not_tried"


@dataclass(slots=True, kw_only=True)
class Chosen:
    """A transaction that the filter takes, and its outcome."""

    row: TransactionRow
    now_ms: int
    #: The first message that matches the filter; None if the broker showed none.
    message: PreviewRow | None = None
    outcome: str = NOT_TRIED
    detail: str = ""


class Choosing:
    """Lists undecided transactions and compares them with a filter."""

    def __init__(self, calls: NativeCalls, wanted: TransactionFilter) -> None:
        self._calls = calls
        self._wanted = wanted
        #: Number of transactions left out although not all of their messages could be read.
        self.partly_read = 0

    def all(self) -> Iterator[Chosen]:
        """Yield the transactions that the filter takes, the oldest first, reading page by page."""
        wanted = self._wanted
        for page in transaction_pages(self._calls, wanted.states, wanted.group):
            now_ms = page.header.now_ms
            yield from self._of_page([r for r in page.rows if wanted.takes_row(r, now_ms)], now_ms)

    def _of_page(self, rows: Sequence[TransactionRow], now_ms: int) -> Iterator[Chosen]:
        held = self._previews(rows)
        for row in rows:
            found = held.get(row.half_offset, [])
            meant = self._meant(found)
            if meant is None and self._wanted.needs_content:
                found = self._rest(row.half_offset, found)
                meant = self._meant(found)
                if meant is None:
                    self.partly_read += bool(found) and len(found) < found[0].message_count
                    continue
            yield Chosen(row=row, now_ms=now_ms, message=meant)

    def _previews(self, rows: Sequence[TransactionRow]) -> Previews:
        is_required = self._wanted.needs_content
        return previews_of(
            self._calls,
            [row.half_offset for row in rows],
            messages_max=MESSAGES_AT_FIRST if is_required else 1,
            is_required=is_required,
        )

    def _rest(self, half_offset: int, found: list[PreviewRow]) -> list[PreviewRow]:
        """Return the messages of a transaction, at most as many as fit into one answer."""
        if not found or len(found) == found[0].message_count:
            return found
        held = previews_of(
            self._calls, [half_offset], messages_max=previews.PREVIEWS_MAX, is_required=True
        )
        return held.get(half_offset, [])

    def _meant(self, found: Sequence[PreviewRow]) -> PreviewRow | None:
        return next((one for one in found if self._wanted.takes_message(one)), None)
