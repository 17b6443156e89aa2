"""Native requests about the log: half messages, decisions, checks, life lines.

A page ends at its limit of rows, of frames or of time. Its cursor is the log offset of the next
frame and, if the page ended within that frame, the number of its rows that were returned. The
durable part of the log never changes, so pages fit together whenever the caller asks for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sized
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from escrowmq.broker.native.calls import (
    PAGE_S_MAX,
    Call,
    ColumnMakers,
    cursor_malformed,
    looks,
    offset_cursor,
)
from escrowmq.broker.native.event_columns import ANY, EventColumns, List
from escrowmq.broker.native.events import EventKind, TransactionEvent
from escrowmq.broker.state.client_links import ClientLink
from escrowmq.broker.state.clients import Clients
from escrowmq.broker.state.transaction_lookup import named_half, true_head
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.message_views import stored_at_ms
from escrowmq.protocol.native.headers import (
    LogRangeHeader,
    PagedHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.raw_log import ReadLogHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.store.log.frames import HEAD_BYTES
from escrowmq.store.reading.log_scan import LogScan
from escrowmq.store.reading.log_sweep import BRIEFLY, LogSweep
from escrowmq.store.reading.reader import StoreReader
from escrowmq.store.store import Store
from escrowmq.transaction.memory.names import Names
from escrowmq.transaction.records import NEVER, NamedOrigin, NamedQueue
from escrowmq.transaction.states import State

FRAMES_MAX = 10_000
"""Most frames that one page of a life line reads."""

LOG_BYTES = 1024 * 1024
LOG_BYTES_BESIDE = 256 * 1024
"""Most raw bytes of the log in one page; the second limit is for while clients are sending."""

FRAMES_MIN = 256
"""Lowest limit of frames for one page of a list, because many frames yield no row."""

# Each list has its kinds of events and, by text field, the column that needs the text.
_HALVES = List(frozenset((EventKind.HELD, EventKind.CARRIED)), {"transaction_id": "transaction_id"})
_OPS = List(
    frozenset((EventKind.COMMITTED, EventKind.ROLLED_BACK)),
    {"by": "decided_by", "app_id": "app_id", "batch_id": "batch_id"},
)
_CHECKS = List(
    frozenset((EventKind.ASKED, EventKind.ANSWERED, EventKind.PARKED, EventKind.RESUMED)),
    {"by": "detail", "detail": "detail"},
)
_EVENTS = List(
    ANY, {name: name for name in ("transaction_id", "by", "detail", "app_id", "batch_id")}
)
_CURSOR_PARTS = 2


class _Page(msgspec.Struct, frozen=True):
    """Events, and the cursor of the next page."""

    told: EventColumns
    cursor: str | None
    unreadable_bytes: int


class NativeRecords:
    """Handles questions about the log."""

    def __init__(self, *, store: Store, reader: StoreReader, clients: Clients[ClientLink]) -> None:
        self._store = store
        self._reader = reader
        self._clients = clients
        self._sweep = LogSweep(store)
        self._scan = LogScan(store)
        self._names = store.core.names
        #: By request code: the list, and the function that makes its columns.
        self._lists: dict[NativeCode, tuple[List, Callable[[EventColumns], ColumnMakers]]] = {
            NativeCode.LIST_HALVES: (_HALVES, self._half_columns),
            NativeCode.LIST_OPS: (_OPS, self._op_columns),
            NativeCode.LIST_CHECKS: (_CHECKS, self._check_columns),
            NativeCode.LIST_EVENTS: (_EVENTS, self._event_columns),
        }

    @looks(
        NativeCode.LIST_HALVES, NativeCode.LIST_OPS, NativeCode.LIST_CHECKS, NativeCode.LIST_EVENTS
    )
    def list_events(self, call: Call[LogRangeHeader]) -> None:
        """List half messages, decisions, events of checks, or all events, in log order."""
        header, store = call.header, self._store
        listed, columns = self._lists[call.spec.code]
        end = store.durable_end if header.end < 0 else min(header.end, store.durable_end)
        page = self._page(call, header.start, end, listed.with_columns(call.wanted_columns))
        call.answer_list(
            columns(page.told),
            cursor=page.cursor,
            log_start=store.log.start,
            log_end=store.durable_end,
            unreadable_bytes=page.unreadable_bytes,
        )

    @looks(NativeCode.READ_LOG)
    def read(self, call: Call[ReadLogHeader]) -> None:
        """Read the log as it was written."""
        header, store = call.header, self._store
        start, end = max(header.start, store.log.start), min(header.end, store.durable_end)
        data = memoryview(b"")
        if start < end:
            size_max = LOG_BYTES_BESIDE if call.is_beside_senders else LOG_BYTES
            data = self._scan.block(start, min(end - start, size_max))
        call.answer_blocks(
            [np.array([start]), np.array([len(data)])],
            data,
            log_start=store.log.start,
            log_end=store.durable_end,
            seed=store.seed,
        )

    @looks(NativeCode.LIST_NAMES)
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
        told = listed.tell(swept, self._store)
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

    def _half_columns(self, told: EventColumns) -> ColumnMakers:
        return {
            **_each(told.plain, log_offset="log_offset", stored_at_ms="at_ms"),
            **_each(told.plain, first="first", head="head", message_count="count"),
            **_each(told.text, transaction_id="transaction_id"),
            **_both(lambda: told.origin(self._names), "producer_group", "ledger"),
            **_each(told.plain, number="number"),
            "is_copy": lambda: told.plain("kind") == int(EventKind.CARRIED),
        }

    def _op_columns(self, told: EventColumns) -> ColumnMakers:
        return {
            **_each(told.plain, log_offset="log_offset", decided_at_ms="at_ms"),
            **_each(told.plain, first="first", head="head", message_count="count"),
            "state": told.state,
            **_each(told.text, decided_by="by", app_id="app_id", batch_id="batch_id"),
            "is_forced": lambda: told.plain("forced") == 1,
        }

    def _check_columns(self, told: EventColumns) -> ColumnMakers:
        return {
            **_each(told.plain, log_offset="log_offset", at_ms="at_ms", head="head"),
            "event": told.event,
            **_each(told.sparse, checks_sent="checks_sent"),
            "detail": lambda: told.either_text("by", "detail"),
        }

    def _event_columns(self, told: EventColumns) -> ColumnMakers:
        return {
            **_each(told.plain, log_offset="log_offset", at_ms="at_ms"),
            "event": told.event,
            **_each(told.sparse, first="first", head="head", message_count="count"),
            **_each(told.sparse, number="number", checks_sent="checks_sent"),
            **_each(told.text, transaction_id="transaction_id", by="by", detail="detail"),
            **_both(lambda: told.origin(self._names), "producer_group", "ledger"),
            **_both(lambda: told.queue(self._names), "topic", "queue_id"),
            **_each(told.sparse, queue_offset="queue_offset"),
            **_each(told.text, app_id="app_id", batch_id="batch_id"),
        }

    # One transaction.

    @looks(NativeCode.LIFE_LINE)
    def life_line(self, call: Call[TransactionHeader]) -> None:
        """List all events of one transaction."""
        header, store = call.header, self._store
        half = named_half(store, self._reader, header.half_offset, header.transaction_id)
        head = true_head(store, half)
        origin = store.core.names.origins[head.origin]
        if origin.ledger and header.limit == 1 and not header.leaves_marks:
            raise RequestRefused(
                "client_outdated",
                "update the SDK: this version would sweep the ledger without a mark",
                ledger=origin.ledger,
            )
        is_decided = head.state in (State.COMMITTED, State.ROLLED_BACK)
        end = store.table.op_offset(head) + 1 if is_decided else store.durable_end
        page = self._page(call, head.log_offset - HEAD_BYTES, end, _EVENTS, head.half_offset)
        names = store.core.names
        is_due = head.state is State.PREPARED and head.next_at_ms != NEVER
        located = self._reader.at(head.log_offset)
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
            producers_online=self._clients.producer_count(origin.group),
        )


def _each(make: Callable[[str], Sized], **fields: str) -> ColumnMakers:
    """Return makers of columns that each show one field."""
    return {column: partial(make, name) for column, name in fields.items()}


def _both(make: Callable[[], tuple[Sized, Sized]], first: str, second: str) -> ColumnMakers:
    """Return makers of two columns that are made together, once."""
    made = cache(make)
    return {first: lambda: made()[0], second: lambda: made()[1]}


def _name(named: NamedQueue | NamedOrigin) -> tuple[object, ...]:
    if isinstance(named, NamedQueue):
        return "queue", named.id, named.topic, named.queue_id, None
    return "origin", named.id, named.group, None, named.ledger


def _told_of(event: TransactionEvent, names: Names) -> tuple[str, str]:
    """Return who caused an event, and its details as text."""
    by, detail = event.by or "", event.detail or ""
    match event.kind:
        case EventKind.HELD:
            by = names.origins[event.origin].group
            detail = f"{event.count} messages from {event.first} on"
        case EventKind.ASKED | EventKind.ANSWERED:
            detail = f"check {event.checks_sent}" + (f": {detail}" if detail else "")
        case EventKind.COMMITTED if event.app_id is not None:
            detail = f"batch {event.batch_id} of {event.app_id}, {event.detail}"
        case EventKind.VISIBLE:
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
