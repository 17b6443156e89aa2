"""Our own questions about the log: half messages, decisions, checks, life lines.

A page ends at its limit of rows, of frames or of time. Its cursor is the log offset of the next
frame and, if the page ended within that frame, the number of its rows that were returned. The
durable part of the log never changes, so pages fit together whenever the caller asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from escrowmq.broker.own_calls import (
    PAGE_S_MAX,
    Call,
    cursor_malformed,
    offset_cursor,
    own_questions,
)
from escrowmq.broker.own_events import Event, Kind
from escrowmq.broker.own_told import ANY, List, Told
from escrowmq.broker.own_transactions import named_half, true_head
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message_views import stored_at_ms
from escrowmq.protocol.own import OwnCode
from escrowmq.store.frames import HEAD_BYTES
from escrowmq.store.log_scan import LogScan
from escrowmq.store.log_sweep import BRIEFLY, LogSweep
from escrowmq.transaction.records import NEVER, NamedOrigin, NamedQueue
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.own_calls import ColumnMakers
    from escrowmq.broker.requests import Handlers
    from escrowmq.protocol.own_headers import (
        LogRangeHeader,
        PagedHeader,
        TransactionHeader,
    )
    from escrowmq.protocol.own_log import ReadLogHeader
    from escrowmq.transaction.names import Names

FRAMES_MAX = 10_000
"""Most frames that one page of a life line reads."""

LOG_BYTES = 1024 * 1024
LOG_BYTES_BESIDE = 256 * 1024
"""Most raw bytes of the log in one page; the second limit is for while clients are sending."""

FRAMES_MIN = 256
"""Lowest limit of frames for one page of a list, because many frames yield no row."""

# Each list has its kinds of events and, by text field, the column that needs the text.
_HALVES = List(frozenset((Kind.HELD, Kind.CARRIED)), {"transaction_id": "transaction_id"})
_OPS = List(
    frozenset((Kind.COMMITTED, Kind.ROLLED_BACK)),
    {"by": "decided_by", "app_id": "app_id", "batch_id": "batch_id"},
)
_CHECKS = List(
    frozenset((Kind.ASKED, Kind.ANSWERED, Kind.PARKED, Kind.RESUMED)),
    {"by": "detail", "detail": "detail"},
)
_EVENTS = List(
    ANY, {name: name for name in ("transaction_id", "by", "detail", "app_id", "batch_id")}
)
_CURSOR_PARTS = 2


class _Page(msgspec.Struct, frozen=True):
    """Events, and the cursor of the next page."""

    told: Told
    cursor: str | None
    unreadable_bytes: int


class OwnRecords:
    """Handles questions about the log."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sweep = LogSweep(broker.store)
        self._scan = LogScan(broker.store)
        self._names = broker.store.core.names

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return own_questions(
            self._broker,
            {
                OwnCode.LIST_HALVES: self.halves,
                OwnCode.LIST_OPS: self.ops,
                OwnCode.LIST_CHECKS: self.checks,
                OwnCode.LIST_EVENTS: self.events,
                OwnCode.READ_LOG: self.read,
                OwnCode.LIST_NAMES: self.names,
                OwnCode.LIFE_LINE: self.life_line,
            },
        )

    def halves(self, call: Call[LogRangeHeader]) -> None:
        """List half messages in log order."""
        self._list(call, _HALVES, self._half_columns)

    def ops(self, call: Call[LogRangeHeader]) -> None:
        """List decisions in log order."""
        self._list(call, _OPS, self._op_columns)

    def checks(self, call: Call[LogRangeHeader]) -> None:
        """List back-checks, answers, parkings and resumptions in log order."""
        self._list(call, _CHECKS, self._check_columns)

    def events(self, call: Call[LogRangeHeader]) -> None:
        """List all events in log order."""
        self._list(call, _EVENTS, self._event_columns)

    def read(self, call: Call[ReadLogHeader]) -> None:
        """Read the log as it was written."""
        header, store = call.header, self._broker.store
        start, end = max(header.start, store.log.start), min(header.end, store.settled)
        data = memoryview(b"")
        if start < end:
            size_max = LOG_BYTES_BESIDE if call.is_beside_senders else LOG_BYTES
            data = self._scan.block(start, min(end - start, size_max))
        call.answer_blocks(
            [np.array([start]), np.array([len(data)])],
            data,
            log_start=store.log.start,
            log_end=store.settled,
            seed=store.seed,
        )

    def names(self, call: Call[PagedHeader]) -> None:
        """List the names that numbers in records stand for."""
        start = offset_cursor(call.header.cursor, 0)
        # Even places are queues, odd ones origins: a deletion between two pages shifts no place.
        names = self._names
        named: dict[int, NamedQueue | NamedOrigin] = {
            2 * one.id: one for one in names.queues.values()
        }
        named |= {2 * one.id + 1: one for one in names.origins}
        places = sorted(place for place in named if place >= start)
        told = places[: call.limit()]
        call.answer_rows(
            (_name(named[place]) for place in told),
            cursor=str(told[-1] + 1) if len(told) < len(places) else None,
        )

    def _list(
        self, call: Call[LogRangeHeader], listed: List, columns: Callable[[Told], ColumnMakers]
    ) -> None:
        header, store = call.header, self._broker.store
        end = store.settled if header.end < 0 else min(header.end, store.settled)
        page = self._page(call, header.start, end, listed.with_columns(call.wanted_columns))
        call.answer_list(
            columns(page.told),
            cursor=page.cursor,
            log_start=store.log.start,
            log_end=store.settled,
            unreadable_bytes=page.unreadable_bytes,
        )

    def _page(
        self, call: Call[Any], start: int, end: int, listed: List, head: int | None = None
    ) -> _Page:
        """Return the next events between these log offsets, of all transactions or of one."""
        limit = call.limit()
        start, skip = _cursor(call.header.cursor, max(start, 0))
        is_brief = call.is_beside_senders
        until = time.monotonic() + (PAGE_S_MAX / BRIEFLY if is_brief else PAGE_S_MAX)
        swept = self._sweep.sweep(
            start,
            end,
            listed.wanted,
            frames_max=max(limit, FRAMES_MIN) if head is None else FRAMES_MAX,
            is_over=lambda: time.monotonic() >= until,
            is_brief=is_brief,
        )
        told = listed.tell(swept, self._broker.store)
        if head is not None:
            told = told.of(head)
        if len(told) <= skip + limit:
            told_to, cursor = swept.end, None if swept.end >= end else str(swept.end)
        else:
            offsets = told.plain("log_offset")
            told_to = int(offsets[skip + limit])
            before = int(np.count_nonzero(offsets[: skip + limit] == told_to))
            cursor = f"{told_to}/{before}"
        unreadable_bytes = sum(length for at, length in swept.unreadable if at < told_to)
        return _Page(told.part(skip, skip + limit), cursor, unreadable_bytes)

    def _half_columns(self, told: Told) -> ColumnMakers:
        origin = cache(lambda: told.origin(self._names))
        return {
            "log_offset": lambda: told.plain("log_offset"),
            "stored_at_ms": lambda: told.plain("at_ms"),
            "first": lambda: told.plain("first"),
            "head": lambda: told.plain("head"),
            "message_count": lambda: told.plain("count"),
            "transaction_id": lambda: told.text("transaction_id"),
            "producer_group": lambda: origin()[0],
            "ledger": lambda: origin()[1],
            "number": lambda: told.plain("number"),
            "is_copy": lambda: told.plain("kind") == int(Kind.CARRIED),
        }

    def _op_columns(self, told: Told) -> ColumnMakers:
        return {
            "log_offset": lambda: told.plain("log_offset"),
            "decided_at_ms": lambda: told.plain("at_ms"),
            "head": lambda: told.plain("head"),
            "first": lambda: told.plain("first"),
            "message_count": lambda: told.plain("count"),
            "state": told.state,
            "decided_by": lambda: told.text("by"),
            "app_id": lambda: told.text("app_id"),
            "batch_id": lambda: told.text("batch_id"),
            "is_forced": lambda: told.plain("forced") == 1,
        }

    def _check_columns(self, told: Told) -> ColumnMakers:
        return {
            "log_offset": lambda: told.plain("log_offset"),
            "at_ms": lambda: told.plain("at_ms"),
            "head": lambda: told.plain("head"),
            "event": told.event,
            "checks_sent": lambda: told.sparse("checks_sent"),
            "detail": lambda: told.either_text("by", "detail"),
        }

    def _event_columns(self, told: Told) -> ColumnMakers:
        origin = cache(lambda: told.origin(self._names))
        queue = cache(lambda: told.queue(self._names))
        return {
            "log_offset": lambda: told.plain("log_offset"),
            "at_ms": lambda: told.plain("at_ms"),
            "event": told.event,
            "head": lambda: told.sparse("head"),
            "first": lambda: told.sparse("first"),
            "message_count": lambda: told.sparse("count"),
            "transaction_id": lambda: told.text("transaction_id"),
            "producer_group": lambda: origin()[0],
            "ledger": lambda: origin()[1],
            "number": lambda: told.sparse("number"),
            "checks_sent": lambda: told.sparse("checks_sent"),
            "by": lambda: told.text("by"),
            "detail": lambda: told.text("detail"),
            "topic": lambda: queue()[0],
            "queue_id": lambda: queue()[1],
            "queue_offset": lambda: told.sparse("queue_offset"),
            "app_id": lambda: told.text("app_id"),
            "batch_id": lambda: told.text("batch_id"),
        }

    # One transaction.

    def life_line(self, call: Call[TransactionHeader]) -> None:
        """List all events of one transaction."""
        broker, store = self._broker, self._broker.store
        half = named_half(broker, call.header.half_offset, call.header.transaction_id)
        head = true_head(store, half)
        origin = store.core.names.origins[head.origin]
        if origin.ledger and call.header.limit == 1 and not call.header.leaves_marks:
            raise RequestRefused(
                "client_outdated",
                "update the SDK: this version would sweep the ledger without a mark",
                ledger=origin.ledger,
            )
        is_decided = head.state in (State.COMMITTED, State.ROLLED_BACK)
        end = store.table.op_offset(head) + 1 if is_decided else store.settled
        page = self._page(call, head.log_offset - HEAD_BYTES, end, _EVENTS, head.half_offset)
        names = store.core.names
        is_due = head.state is State.PREPARED and head.next_at_ms != NEVER
        located = broker.reader.at(head.log_offset)
        is_visible = located is not None and located.is_visible
        call.answer_rows(
            [
                (at_ms, event.kind.label, log_offset, *_told_of(event, names))
                for log_offset, at_ms, event in page.told.events()
            ],
            cursor=page.cursor,
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


def _name(named: NamedQueue | NamedOrigin) -> tuple[object, ...]:
    if isinstance(named, NamedQueue):
        return "queue", named.id, named.topic, named.queue_id, None
    return "origin", named.id, named.group, None, named.ledger


def _told_of(event: Event, names: Names) -> tuple[str, str]:
    """Return who caused an event, and its details as text."""
    by, detail = event.by or "", event.detail or ""
    match event.kind:
        case Kind.HELD:
            by = names.origins[event.origin].group
            detail = f"{event.count} messages from {event.first} on"
        case Kind.ASKED | Kind.ANSWERED:
            detail = f"check {event.checks_sent}" + (f": {detail}" if detail else "")
        case Kind.COMMITTED if event.app_id is not None:
            detail = f"batch {event.batch_id} of {event.app_id}, {event.detail}"
        case Kind.VISIBLE:
            queue = names.named(event.queue)
            last = event.queue_offset + event.count - 1
            place = f"{queue.topic}, queue {queue.queue_id}"
            detail = f"{place}, offsets {event.queue_offset} to {last}"
    return by, detail


def _cursor(cursor: str, start: int) -> tuple[int, int]:
    """Return where a page begins: a log offset, and how many rows of its frame were returned."""
    if not cursor:
        return start, 0
    try:
        parts = [int(part) for part in cursor.split("/")]
    except ValueError:
        raise cursor_malformed(cursor) from None
    if len(parts) > _CURSOR_PARTS or min(parts) < 0:
        raise cursor_malformed(cursor)
    return max(parts[0], start), parts[1] if len(parts) == _CURSOR_PARTS else 0
