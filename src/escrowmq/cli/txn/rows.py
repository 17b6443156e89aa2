"""Converts transactions to table lines and to JSON shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.cli.asking import duration
from escrowmq.cli.txn import messages
from escrowmq.cli.txn.messages import body_of, cells
from escrowmq.cli.txn.shapes import TransactionShape
from escrowmq.protocol.message.properties import split_keys
from escrowmq.protocol.native.rows import NO_CHECK_MS, TransactionRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from escrowmq.cli.txn.messages import Previews
    from escrowmq.protocol.native.headers import LifeLineAnswer
    from escrowmq.protocol.native.previews import PreviewRow

COLUMNS = (
    *("half", "state", "age", "group", "topic", "keys", "tags", "body"),
    *("checks", "next check", "producers", "ledger", "id"),
)
STATES = ("prepared", "committed", "rolled_back", "parked")


def shape_of(row: TransactionRow, held: Previews) -> TransactionShape:
    """Convert a transaction to its JSON shape."""
    first = next(iter(held.get(row.half_offset, [])), None)
    return TransactionShape(
        half=row.half_offset,
        state=STATES[row.state],
        age_ms=row.age_ms,
        group=row.producer_group,
        checks=row.checks_sent,
        next_check_in_ms=row.wait_ms if _is_checked(row) else None,
        producers=row.producers_online,
        ledger=row.ledger,
        id=row.transaction_id,
        topic=first.topic if first else None,
        keys=list(split_keys(first.keys)) if first else None,
        tags=first.tags if first else None,
        body_preview=body_of(first) if first else None,
        body_bytes=first.body_bytes if first else None,
        message_count=first.message_count if first else None,
    )


def line_of(row: TransactionRow, held: Previews) -> tuple[Any, ...]:
    """Return the table cells of a transaction."""
    next_check = None
    if _is_checked(row):
        next_check = f"in {duration(row.wait_ms)}" if row.wait_ms > 0 else "due"
    return (
        *(row.half_offset, STATES[row.state], duration(row.age_ms), row.producer_group),
        *cells(held.get(row.half_offset, [])),
        *(row.checks_sent, next_check, row.producers_online, row.ledger, row.transaction_id),
    )


def _is_checked(row: TransactionRow) -> bool:
    return row.state == 0 and row.wait_ms < NO_CHECK_MS


def head_facts(head: LifeLineAnswer, held: Sequence[PreviewRow]) -> dict[str, Any]:
    """Return the values of ``TransactionHeadShape`` by key."""
    return {
        "id": head.transaction_id,
        "state": head.state,
        "half": head.half_offset,
        "group": head.producer_group,
        "ledger": head.ledger,
        "checks": head.checks_sent,
        "producers": head.producers_online,
        "next_check_at_ms": head.next_check_at_ms,
        "visible_at_ms": head.visible_at_ms,
        "messages": [messages.shape_of(row) for row in held],
        "messages_left_out": messages.left_out(held),
    }
