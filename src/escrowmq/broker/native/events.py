"""Events of transactions, made from log records for lists of the log and for life lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

import msgspec

from escrowmq.transaction import records as kinds
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import PLAIN, Record, Span, unpack_rows
from escrowmq.transaction.states import LabeledEnum, State
from escrowmq.transaction.table import FIRST

NOTHING = -(2**63)
"""Marks a missing number; -1 is taken: it is the number of a stock client's request."""


_UNTOLD = (
    kinds.Stored
    | kinds.Scheduled
    | kinds.NameRecord
    | kinds.CatalogRecord
    | kinds.HistoryRecord
    | kinds.PopRecord
)
_UNDECIDED = (State.PREPARED, State.PARKED)


class EventKind(LabeledEnum):
    """Kinds of events; the numbers are used only within this process."""

    HELD = 0
    CARRIED = 1
    ASKED = 2
    ANSWERED = 3
    PARKED = 4
    RESUMED = 5
    COMMITTED = 6
    ROLLED_BACK = 7
    VISIBLE = 8
    UNREADABLE = 9
    RECALLED = 10


OF_STATE = {State.COMMITTED: EventKind.COMMITTED, State.ROLLED_BACK: EventKind.ROLLED_BACK}


class TransactionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of one transaction or of several."""

    kind: EventKind
    #: The first half message of the transaction.
    head: int = NOTHING
    #: The first half message that the event is about, and their number.
    first: int = NOTHING
    count: int = NOTHING
    #: The origin, and the number of the request within its transaction.
    origin: int = NOTHING
    number: int = NOTHING
    checks_sent: int = NOTHING
    #: The queue, and the first queue offset that was assigned.
    queue: int = NOTHING
    queue_offset: int = NOTHING
    #: 1 for a forced decision.
    forced: int = NOTHING
    transaction_id: str | None = None
    by: str | None = None
    detail: str | None = None
    app_id: str | None = None
    batch_id: str | None = None


def events_of(record: Record, core: Transactions) -> Iterator[TransactionEvent]:  # noqa: C901 - one case per record
    """Yield the events of a record."""
    match record:
        case kinds.Prepared():
            yield _stored(EventKind.HELD, record, record.first, len(record.placed.queues))
        case kinds.Carried():
            yield from _carried(record)
        case kinds.Decided():
            yield from _decided(record)
        case kinds.DecidedMany():
            yield from _decided_many(record, core)
        case kinds.BatchDecided():
            yield from _batch_decided(record)
        case kinds.Released():
            yield from _released(record, core)
        case Recalled():
            yield TransactionEvent(
                kind=EventKind.RECALLED,
                first=record.row,
                count=1,
                queue=record.queue,
                by=record.by,
            )
        case kinds.Asked() | kinds.Answered():
            yield _checked(record)
        case kinds.Parked():
            yield TransactionEvent(kind=EventKind.PARKED, head=record.head, detail=record.reason)
        case kinds.Resumed():
            yield TransactionEvent(kind=EventKind.RESUMED, head=record.head, by=record.by)
        case _ if isinstance(record, _UNTOLD):
            pass
        case _:
            assert_never(record)


def _stored(
    kind: EventKind, request: kinds.Prepared | kinds.CarriedRow, first: int, count: int
) -> TransactionEvent:
    return TransactionEvent(
        kind=kind,
        head=request.head,
        first=first,
        count=count,
        origin=request.origin,
        number=request.number,
        transaction_id=request.transaction_id,
    )


def _carried(record: kinds.Carried) -> Iterator[TransactionEvent]:
    row, count = record.rows[0], len(record.rows)
    if row.origin == PLAIN:
        # Delayed ordinary messages: they belong to no transaction.
        return
    if record.since_ms and row.state in _UNDECIDED:
        # Carried forward in parts: the part with the first row comes last and stands for all.
        if not row.part & FIRST:
            return
        count = row.part & ~FIRST
    yield _stored(EventKind.CARRIED, row, row.half_offset, count)


def _checked(record: kinds.Asked | kinds.Answered) -> TransactionEvent:
    asked = TransactionEvent(
        kind=EventKind.ASKED, head=record.head, checks_sent=record.checks_sent, by=record.client
    )
    if isinstance(record, kinds.Asked):
        return asked
    return msgspec.structs.replace(asked, kind=EventKind.ANSWERED, detail=record.remark or None)


def _decided(record: kinds.Decided) -> Iterator[TransactionEvent]:
    kind, head = OF_STATE[State(record.state)], record.head
    forced = 1 if record.is_forced else NOTHING
    for first, count in record.ranges:
        yield TransactionEvent(
            kind=kind, head=head, first=first, count=count, by=record.by, forced=forced
        )
    for span in record.given:
        # With several messages, the record does not say which of them has which offset.
        first = head if record.ranges == [(head, 1)] else NOTHING
        yield msgspec.structs.replace(_visible(span), head=head, first=first)


def _decided_many(record: kinds.DecidedMany, core: Transactions) -> Iterator[TransactionEvent]:
    for kind, rows in (
        (EventKind.COMMITTED, record.committed),
        (EventKind.ROLLED_BACK, record.rolled_back),
    ):
        for row in unpack_rows(rows):
            yield TransactionEvent(kind=kind, head=row, first=row, count=1, by=record.by)
    places = {span.queue: span.first for span in record.given}
    for row in unpack_rows(record.committed):
        half = core.half(row)
        if half is None:
            # The row is lost, so the queue offsets of this message and the later ones are unknown.
            return
        yield TransactionEvent(
            kind=EventKind.VISIBLE,
            head=row,
            first=row,
            count=1,
            queue=half.queue,
            queue_offset=places[half.queue],
        )
        places[half.queue] += 1


def _batch_decided(record: kinds.BatchDecided) -> Iterator[TransactionEvent]:
    batch_id = str(record.batch_id)
    heads, head = set(record.heads), NOTHING
    for first, count in record.ranges:
        # Ranges of one transaction follow each other, and the first one starts at its head.
        head = first if first in heads else head
        yield TransactionEvent(
            kind=EventKind.COMMITTED,
            head=head,
            first=first,
            count=count,
            by=record.by,
            detail=f"query {record.query_id}",
            app_id=record.app_id,
            batch_id=batch_id,
        )
    for span in record.given:
        yield msgspec.structs.replace(_visible(span), app_id=record.app_id, batch_id=batch_id)


def _visible(span: Span) -> TransactionEvent:
    return TransactionEvent(
        kind=EventKind.VISIBLE, queue=span.queue, queue_offset=span.first, count=span.count
    )


def _released(record: kinds.Released, core: Transactions) -> Iterator[TransactionEvent]:
    placed = zip(record.rows, record.queues, record.queue_offsets, strict=True)
    for row, queue, queue_offset in placed:
        half = core.half(row)
        # The other rows are ordinary messages that were delayed.
        if half is not None and half.origin != PLAIN:
            yield TransactionEvent(
                kind=EventKind.VISIBLE, first=row, count=1, queue=queue, queue_offset=queue_offset
            )
