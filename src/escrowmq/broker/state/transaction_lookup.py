"""Finds a transaction by any of its half messages or by its id, and its rows."""

from __future__ import annotations

from escrowmq.model.errors import RequestRefused
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.store import Store
from escrowmq.transaction.records import Decided, request_in
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half

BY_HAND = " by hand: "
"""Separates the operator from the reason in the record of a decision by hand."""


def named_half(store: Store, reader: StoreReader, half_offset: int, transaction_id: str) -> Half:
    """Return the half message that the request names; refuse an unknown one."""
    if (half_offset < 0) == (not transaction_id):
        raise RequestRefused("transaction_unnamed", "give a half offset or an id, not both")
    if transaction_id:
        half = reader.find_transaction(transaction_id)
    else:
        half = store.core.half(half_offset)
    if half is None:
        raise RequestRefused(
            "transaction_unknown",
            "this broker never stored it, or its retention is over",
            half_offset=half_offset,
            transaction_id=transaction_id[:64],
        )
    return half


def true_head(store: Store, half: Half) -> Half:
    """Return the transaction's first half message; the log has it even after the decision."""
    first = store.core.row(half.first)
    frame_at = first.location - HEAD_BYTES
    if frame_at < store.log.start or store.lost.hold(frame_at):
        return first
    found = request_in(store.reading.frame(frame_at).records, first.half_offset)
    return first if found is None else store.table.get(found.head) or first


def message_ranges(store: Store, half: Half) -> tuple[list[tuple[int, int]], int]:
    """Return rows ``(first, count)`` of a transaction's half messages, and their total number.

    The record of a decision names all rows. Once retention has deleted that record, only the rows
    of the request that brought this half message are known.
    """
    if half.state in (State.COMMITTED, State.ROLLED_BACK):
        ranges = _decided_ranges(store, half)
    else:
        ranges = store.core.ranges_of(store.core.head_of(half.first))
    return ranges, sum(count for _, count in ranges)


def _decided_ranges(store: Store, half: Half) -> list[tuple[int, int]]:
    first = store.core.row(half.first)
    op_offset = store.table.op_offset(half)
    if op_offset >= store.log.start and not store.lost.hold(op_offset):
        for record in store.reading.frame(op_offset).records:
            if isinstance(record, Decided) and any(
                at <= half.half_offset < at + count for at, count in record.ranges
            ):
                return record.ranges
    return [(first.half_offset, first.part & ~FIRST)]
