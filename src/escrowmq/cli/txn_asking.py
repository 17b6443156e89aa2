"""Requests to a broker about one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.protocol.own_headers import LifeLineAnswer
    from escrowmq.protocol.own_rows import EventRow


def named(transaction: str) -> dict[str, Any]:
    """Return the request field that names a transaction: a half message's number, or an id."""
    if transaction.isdecimal():
        return {"half_offset": int(transaction)}
    return {"transaction_id": transaction}


def head_of(calls: OwnCalls, transaction: str) -> LifeLineAnswer:
    """Return the state of a transaction without its history."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TransactionHeader

    asked = TransactionHeader(**named(transaction), limit=1, leaves_marks=True)
    told: LifeLineAnswer = calls.call(OwnCode.LIFE_LINE, asked).header
    return told


def life_line_of(calls: OwnCalls, transaction: str) -> tuple[LifeLineAnswer, list[EventRow]]:
    """Return the state of a transaction and its whole history."""
    from escrowmq.protocol.own import OwnCode
    from escrowmq.protocol.own_headers import TransactionHeader

    pages = list(calls.pages(OwnCode.LIFE_LINE, TransactionHeader(**named(transaction))))
    return pages[-1].header, [event for page in pages for event in page.rows]
