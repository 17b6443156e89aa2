"""Our own questions about what the log says: half messages, decisions, checks, life lines.

A page ends after so many rows, or once enough of the log was passed.  Its cursor is the log offset
of the next frame and, if the page ended within one, how many of its rows were told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from escrowmq.broker.own_calls import Call, cursor_malformed, own_questions
from escrowmq.broker.own_transactions import named_half, true_head
from escrowmq.protocol.message_views import stored_at_ms
from escrowmq.protocol.own import OwnCode
from escrowmq.store.frames import HEAD_BYTES
from escrowmq.store.log_scan import LogScan
from escrowmq.transaction.records import (
    NEVER,
    PLAIN,
    Answered,
    Asked,
    BatchDecided,
    Decided,
    DecidedMany,
    Moved,
    Parked,
    Prepared,
    Resumed,
    Span,
    unpack_rows,
)
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import LogRangeHeader, PagedHeader, TransactionHeader
    from escrowmq.store.log_scan import Passed
    from escrowmq.store.store import Store
    from escrowmq.transaction.names import Names
    from escrowmq.transaction.records import Record

PASSED_BYTES_MAX = 1024 * 1024
"""Bytes of the log that one page passes."""

Told = tuple[object, ...]
TellFrame = Callable[["Passed"], Iterator[Told]]
_CURSOR_PARTS = 2


class OwnRecords:
    """Handles questions about the log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scan = LogScan(broker.store)

    def handlers(self) -> Handlers:
        """By request code."""
        return own_questions(
            self._broker,
            {
                OwnCode.LIST_HALVES: self.halves,
                OwnCode.LIST_OPS: self.ops,
                OwnCode.LIST_CHECKS: self.checks,
                OwnCode.LIFE_LINE: self.life_line,
            },
        )

    def halves(self, call: Call[LogRangeHeader]) -> None:
        """Half messages, in the order of the log."""
        names = self._broker.store.core.names
        self._list(call, lambda passed: _tell_halves(passed, names), with_messages=True)

    def ops(self, call: Call[LogRangeHeader]) -> None:
        """Decisions, in the order of the log."""
        self._list(call, _tell_ops, with_messages=False)

    def checks(self, call: Call[LogRangeHeader]) -> None:
        """What happened to undecided transactions, in the order of the log."""
        self._list(call, _tell_checks, with_messages=False)

    def _list(self, call: Call[LogRangeHeader], tell: TellFrame, *, with_messages: bool) -> None:
        header, store = call.header, self._broker.store
        end = store.settled if header.end < 0 else min(header.end, store.settled)
        rows, cursor = self._page(call, header.start, end, tell, with_messages=with_messages)
        call.answer_rows(rows, cursor=cursor, log_start=store.log.start, log_end=store.settled)

    def _page(
        self, call: Call[Any], start: int, end: int, tell: TellFrame, *, with_messages: bool
    ) -> tuple[list[Told], str | None]:
        header: PagedHeader = call.header
        at, skip = _cursor(header.cursor, max(start, 0))
        rows: list[Told] = []
        limit = call.limit()
        for passed in self._scan.frames(at, PASSED_BYTES_MAX, with_messages=with_messages):
            at = passed.log_offset
            if at >= end or len(rows) == limit:
                break
            told = list(tell(passed))[skip:]
            room = limit - len(rows)
            rows += told[:room]
            if len(told) > room:
                return rows, f"{at}/{skip + room}"
            at, skip = passed.end, 0
        return rows, None if at >= end else str(at)

    # One transaction.

    def life_line(self, call: Call[TransactionHeader]) -> None:
        """All that happened to a transaction."""
        broker, store = self._broker, self._broker.store
        half = named_half(broker, call.header.half_offset, call.header.transaction_id)
        head = true_head(store, half)
        origin = store.core.names.origins[head.origin]
        is_decided = head.state in (State.COMMITTED, State.ROLLED_BACK)
        end = store.table.op_offset(head) + 1 if is_decided else store.settled
        rows, cursor = self._page(
            call,
            head.log_offset - HEAD_BYTES,
            end,
            _LifeLine(head.half_offset, store).tell,
            with_messages=True,
        )
        is_due = head.state is State.PREPARED and head.next_at_ms != NEVER
        located = broker.reader.at(head.log_offset)
        is_visible = located is not None and located.is_visible
        call.answer_rows(
            rows,
            cursor=cursor,
            half_offset=head.half_offset,
            transaction_id=store.table.identity(head)[0],
            producer_group=origin.group,
            ledger=origin.ledger,
            state=head.state.label,
            checks_sent=head.checks_sent,
            next_check_at_ms=head.next_at_ms if is_due else None,
            visible_at_ms=stored_at_ms(located.message) if located and is_visible else None,
            producers_online=broker.checking.online(origin.group),
        )


def _tell_halves(passed: Passed, names: Names) -> Iterator[Told]:
    for record in passed.records:
        if isinstance(record, Prepared):
            count, is_copy = len(record.placed.queues), False
            first, head, number = record.first, record.head, record.number
            origin, transaction_id = record.origin, record.transaction_id
        elif isinstance(record, Moved) and record.rows[0].origin != PLAIN:
            row, count, is_copy = record.rows[0], len(record.rows), True
            first, head, number = row.half_offset, row.head, row.number
            origin, transaction_id = row.origin, row.transaction_id
        else:
            continue
        named = names.origins[origin]
        yield (
            passed.log_offset,
            passed.stored_at_ms,
            first,
            head,
            count,
            transaction_id,
            named.group,
            named.ledger,
            number,
            is_copy,
        )


def _tell_ops(passed: Passed) -> Iterator[Told]:
    for record in passed.records:
        if isinstance(record, DecidedMany):
            yield from _tell_each_op(passed, record)
            continue
        if isinstance(record, Decided):
            head, state, batch = record.head, record.state, (None, None)
        elif isinstance(record, BatchDecided):
            head, state = record.heads[0] if record.heads else -1, int(State.COMMITTED)
            batch = (record.app_id, str(record.batch_id))  # type: ignore[assignment]
        else:
            continue
        for first, count in record.ranges:
            at = (passed.log_offset, passed.stored_at_ms)
            yield (*at, head, first, count, state, record.by, *batch)


def _tell_each_op(passed: Passed, record: DecidedMany) -> Iterator[Told]:
    for packed, state in (
        (record.committed, State.COMMITTED),
        (record.rolled_back, State.ROLLED_BACK),
    ):
        for row in unpack_rows(packed):
            at = (passed.log_offset, passed.stored_at_ms)
            yield (*at, row, row, 1, int(state), record.by, None, None)


def _tell_checks(passed: Passed) -> Iterator[Told]:
    for record in passed.records:
        told = _check(record)
        if told is not None:
            yield passed.log_offset, passed.stored_at_ms, *told


def _check(record: Record) -> tuple[int, str, int | None, str] | None:
    """Head, event, number of the check, and what there is to say of it."""
    match record:
        case Asked():
            return record.head, "asked", record.checks_sent, record.client
        case Answered():
            return record.head, "answered", record.checks_sent, record.client
        case Parked():
            return record.head, "parked", None, record.reason
        case Resumed():
            return record.head, "resumed", None, record.by
    return None


class _LifeLine:
    """What frames say of one transaction."""

    def __init__(self, head: int, store: Store) -> None:
        self._head = head
        self._table = store.table
        self._names = store.core.names

    def tell(self, passed: Passed) -> Iterator[Told]:
        for record in passed.records:
            for event, by, detail in self._events(record):
                yield passed.stored_at_ms, event, passed.log_offset, by, detail

    def _events(self, record: Record) -> Iterator[tuple[str, str, str]]:
        head = self._head
        check = _check(record)
        if check is not None and check[0] == head:
            _, event, number, said = check
            is_reason = event == "parked"
            detail = said if is_reason else f"check {number}" if number is not None else ""
            yield event, "" if is_reason else said, detail
        elif isinstance(record, Prepared) and record.head == head:
            group = self._names.origins[record.origin].group
            yield "held", group, f"{len(record.placed.queues)} messages from {record.first} on"
        elif isinstance(record, Decided) and record.head == head:
            yield State(record.state).label, record.by, ""
            for span in record.given:
                yield "visible", "", self._place(span)
        elif isinstance(record, DecidedMany):
            yield from self._among_many(record)
        elif isinstance(record, BatchDecided) and head in record.heads:
            batch = f"batch {record.batch_id} of {record.app_id}, query {record.query_id}"
            yield State.COMMITTED.label, record.by, batch

    def _among_many(self, record: DecidedMany) -> Iterator[tuple[str, str, str]]:
        if self._head in unpack_rows(record.rolled_back):
            yield State.ROLLED_BACK.label, record.by, ""
        committed = unpack_rows(record.committed).tolist()
        if self._head not in committed:
            return
        yield State.COMMITTED.label, record.by, ""
        halves = [self._table.get(row) for row in committed[: committed.index(self._head) + 1]]
        queues = [half.queue for half in halves if half is not None]
        if len(queues) < len(halves):
            # Of what is lost nobody knows which places it took.
            return
        (first,) = (span.first for span in record.given if span.queue == queues[-1])
        yield "visible", "", self._place(Span(queues[-1], first + queues.count(queues[-1]) - 1, 1))

    def _place(self, span: Span) -> str:
        queue = self._names.queues[span.queue]
        last = span.first + span.count - 1
        return f"{queue.topic}, queue {queue.queue_id}, offsets {span.first} to {last}"


def _cursor(cursor: str, start: int) -> tuple[int, int]:
    """Where a page begins: a log offset, and how many rows of the frame there were told."""
    if not cursor:
        return start, 0
    try:
        parts = [int(part) for part in cursor.split("/")]
    except ValueError:
        raise cursor_malformed(cursor) from None
    if len(parts) > _CURSOR_PARTS or min(parts) < 0:
        raise cursor_malformed(cursor)
    return max(parts[0], start), parts[1] if len(parts) == _CURSOR_PARTS else 0
