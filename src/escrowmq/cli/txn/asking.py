"""Requests to a broker about one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.protocol.native.headers import LifeLineAnswer, TransactionHeader
from escrowmq.protocol.native.requests import NativeCode

if TYPE_CHECKING:
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.protocol.native.rows import EventRow


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
