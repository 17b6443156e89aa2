"""Finds the time from which a message with a row in the state table can have been visible.

A queue's entries are sorted by the time at which they became visible. So this time finds the entry
of a message, however much its queue grew while it waited. The log has the time: the decision names
the messages that wait and until when, and so do the frames that scheduled or carried them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.store.log.frames import FRAME_BYTES_MAX, MAGIC, read_frame, stated_head
from escrowmq.transaction.records import PLAIN, BatchDecided, Carried, Decided, Scheduled
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.store.log.frames import Frame
    from escrowmq.store.store import Store
    from escrowmq.transaction.table import Half

SEARCHED_BYTES = (4 * 1024, 256 * 1024, FRAME_BYTES_MAX)
"""How many bytes before a message its frame may begin; the search widens step by step."""


def visible_from_ms(store: Store, half: Half) -> int:
    """Return a time at which, or shortly after which, the message became visible."""
    bounds = [half.stored_at_ms, _written_from_ms(store, half.location)]
    if half.origin != PLAIN:
        bounds.append(_decided_from_ms(store, half))
    if half.origin == PLAIN or half.location != half.log_offset:
        bounds.append(_brought_from_ms(store, half))
    return max(bounds)


def _written_from_ms(store: Store, location: int) -> int:
    """Return the time of the segment's first frame: bytes are written before they are visible."""
    return next(
        (one.first_at_ms for one in store.log.segments if one.start <= location < one.end), 0
    )


def _decided_from_ms(store: Store, half: Half) -> int:
    """Return when the message was decided, or until when that delayed it; 0 if it is unknown."""
    op_offset = store.table.op_offset(half)
    if op_offset < store.log.start or store.lost.hold(op_offset):
        return 0
    frame = store.reading.frame(op_offset)
    waiting = {
        row: at_ms
        for record in frame.records
        if isinstance(record, Decided | BatchDecided)
        for row, at_ms in record.waiting
    }
    return waiting.get(half.half_offset, frame.stored_at_ms)


def _brought_from_ms(store: Store, half: Half) -> int:
    """Return until when the frame of the message's bytes delayed it; 0 if that is not found."""
    frame = _frame_of(store, half)
    for record in () if frame is None else frame.records:
        if isinstance(record, Scheduled):
            return record.deliver_at_ms[half.half_offset - record.first]
        if isinstance(record, Carried):
            # For an undecided message, ``next_at_ms`` is when its next check was due.
            waits = {
                row.half_offset: row.next_at_ms
                for row in record.rows
                if row.state == State.COMMITTED
            }
            assert frame is not None
            # It may have been carried at the very moment when it became visible.
            return max(frame.stored_at_ms, waits.get(half.half_offset, 0))
    return 0


def _frame_of(store: Store, half: Half) -> Frame | None:
    """Return the frame that holds its bytes; None if it is damaged."""
    location = half.location
    segment = next(one for one in store.log.segments if one.start <= location < one.end)
    for size in SEARCHED_BYTES:
        start = max(segment.start, location - size)
        data = store.log.peek(start, location - start)
        at = data.rfind(MAGIC)
        while at >= 0:
            # A message may hold anything, so bytes that look like a frame are verified.
            head = stated_head(data, at)
            if head is not None and start + at + head.length > location:
                frame = store.log.peek(start + at, head.length)
                found = read_frame(frame, 0, start + at, store.seed)
                if found is not None:
                    return found
            at = data.rfind(MAGIC, 0, at + len(MAGIC) - 1)
    return None
