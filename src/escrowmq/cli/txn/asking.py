"""Requests to a broker about transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.protocol.native.headers import (
    LifeLineAnswer,
    ListTransactionsHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.frames import NativeReply
    from escrowmq.protocol.native.rows import EventRow


#: Rows per request: only so many, because the broker reads the id of each from its log.
PAGE_ROWS = 1_000


def transaction_pages(calls: NativeCalls, states: str, group: str) -> Iterator[NativeReply]:
    """Yield pages of transactions, the oldest first, so that not all are in memory at once."""
    asked = ListTransactionsHeader(
        states=states, with_ids=True, limit=PAGE_ROWS, producer_group=group
    )
    return calls.pages(NativeCode.LIST_TRANSACTIONS, asked)


def named(transaction: str) -> dict[str, Any]:
    """Return the request field that names a transaction: a half message's number, or an id."""
    if transaction.isdecimal():
        return {"half_offset": int(transaction)}
    return {"transaction_id": transaction}


def head_of(calls: NativeCalls, transaction: str) -> LifeLineAnswer:
    """Return the state of a transaction without its history."""
    asked = TransactionHeader(**named(transaction), limit=1, leaves_marks=True)
    told: LifeLineAnswer = calls.call(NativeCode.LIFE_LINE, asked).header
    return told


def life_line_of(calls: NativeCalls, transaction: str) -> tuple[LifeLineAnswer, list[EventRow]]:
    """Return the state of a transaction and its whole history."""
    pages = list(calls.pages(NativeCode.LIFE_LINE, TransactionHeader(**named(transaction))))
    return pages[-1].header, [event for page in pages for event in page.rows]
