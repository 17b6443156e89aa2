"""Events of transactions, made from log records for lists of the log and for life lines."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from escrowmq.transaction.records import (
    PLAIN,
    Answered,
    Asked,
    BatchDecided,
    Decided,
    DecidedMany,
    Moved,
    Parked,
    Prepared,
    Released,
    Resumed,
    unpack_rows,
)
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.records import Record, Span

NOTHING = -(2**63)
"""Marks a missing number; -1 is taken: it is the number of a stock client's request."""


_UNDECIDED = (State.PREPARED, State.PARKED)


class Kind(IntEnum):
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

    @property
    def label(self) -> str:
        """Name of the kind in answers."""
        return self.name.lower()


OF_STATE = {State.COMMITTED: Kind.COMMITTED, State.ROLLED_BACK: Kind.ROLLED_BACK}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of one transaction or of several."""

    kind: Kind
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


def events_of(record: Record, core: Transactions) -> Iterator[Event]:
    """Yield the events of a record."""
    match record:
        case Prepared():
            yield _held(record)
        case Moved() if record.rows[0].origin != PLAIN:
            yield from _carried(record)
        case Decided():
            yield from _decided(record)
        case DecidedMany():
            yield from _decided_many(record, core)
        case BatchDecided():
            yield from _batch_decided(record)
        case Released():
            yield from _released(record, core)
        case Asked() | Answered():
            yield _checked(record)
        case Parked():
            yield Event(kind=Kind.PARKED, head=record.head, detail=record.reason)
        case Resumed():
            yield Event(kind=Kind.RESUMED, head=record.head, by=record.by)


def _held(record: Prepared) -> Event:
    return Event(
        kind=Kind.HELD,
        head=record.head,
        first=record.first,
        count=len(record.placed.queues),
        origin=record.origin,
        number=record.number,
        transaction_id=record.transaction_id,
    )


def _carried(record: Moved) -> Iterator[Event]:
    row, count = record.rows[0], len(record.rows)
    if record.since_ms and row.state in _UNDECIDED:
        # Carried forward in parts: the part with the first row comes last and stands for all.
        if not row.part & FIRST:
            return
        count = row.part & ~FIRST
    yield Event(
        kind=Kind.CARRIED,
        head=row.head,
        first=row.half_offset,
        count=count,
        origin=row.origin,
        number=row.number,
        transaction_id=row.transaction_id,
    )


def _checked(record: Asked | Answered) -> Event:
    asked = Event(
        kind=Kind.ASKED, head=record.head, checks_sent=record.checks_sent, by=record.client
    )
    if isinstance(record, Asked):
        return asked
    return msgspec.structs.replace(asked, kind=Kind.ANSWERED, detail=record.remark or None)


def _decided(record: Decided) -> Iterator[Event]:
    kind, head = OF_STATE[State(record.state)], record.head
    forced = 1 if record.is_forced else NOTHING
    for first, count in record.ranges:
        yield Event(kind=kind, head=head, first=first, count=count, by=record.by, forced=forced)
    for span in record.given:
        # With several messages, the record does not say which of them has which offset.
        first = head if record.ranges == [(head, 1)] else NOTHING
        yield msgspec.structs.replace(_visible(span), head=head, first=first)


def _decided_many(record: DecidedMany, core: Transactions) -> Iterator[Event]:
    for kind, rows in (
        (Kind.COMMITTED, record.committed),
        (Kind.ROLLED_BACK, record.rolled_back),
    ):
        for row in unpack_rows(rows):
            yield Event(kind=kind, head=row, first=row, count=1, by=record.by)
    places = {span.queue: span.first for span in record.given}
    for row in unpack_rows(record.committed):
        half = core.half(row)
        if half is None:
            # The row is lost, so the queue offsets of this message and the later ones are unknown.
            return
        yield Event(
            kind=Kind.VISIBLE,
            head=row,
            first=row,
            count=1,
            queue=half.queue,
            queue_offset=places[half.queue],
        )
        places[half.queue] += 1


def _batch_decided(record: BatchDecided) -> Iterator[Event]:
    batch_id = str(record.batch_id)
    heads, head = set(record.heads), NOTHING
    for first, count in record.ranges:
        # Ranges of one transaction follow each other, and the first one starts at its head.
        head = first if first in heads else head
        yield Event(
            kind=Kind.COMMITTED,
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


def _visible(span: Span) -> Event:
    return Event(kind=Kind.VISIBLE, queue=span.queue, queue_offset=span.first, count=span.count)


def _released(record: Released, core: Transactions) -> Iterator[Event]:
    placed = zip(record.rows, record.queues, record.queue_offsets, strict=True)
    for row, queue, queue_offset in placed:
        half = core.half(row)
        # The other rows are ordinary messages that were delayed.
        if half is not None and half.origin != PLAIN:
            yield Event(
                kind=Kind.VISIBLE, first=row, count=1, queue=queue, queue_offset=queue_offset
            )
