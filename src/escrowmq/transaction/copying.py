"""Copying half messages forward: for retention, and when they become visible very late.

A copy is the same bytes further on in the log; the half message keeps its identity.  Each request
is carried in a frame of its own: no frame outgrows a request, and the frame of a request's first
row is found from the row alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Carry, Decision, Release
from escrowmq.transaction.giving import give_each
from escrowmq.transaction.records import NOWHERE, UNNUMBERED, Moved, MovedRow, Placed, Released
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, SPAN_MAX, Half

if TYPE_CHECKING:
    from collections.abc import Iterable

    from escrowmq.transaction.core import Transactions


def is_stale(core: Transactions, half: Half, now_ms: int) -> bool:
    """Whether its bytes are so old that it would not live a whole retention from now."""
    since_ms = half.stored_at_ms
    if half.location != half.log_offset:
        since_ms = core.moved_at_ms.get(half.first, since_ms)
    return now_ms - since_ms >= core.copy_after_ms


def stale_requests(
    core: Transactions, ranges: Iterable[tuple[int, int]], waits: set[int], now_ms: int
) -> tuple[int, ...]:
    """Those of these requests that must be carried before they become visible.

    One whose rows all wait becomes visible later, and is looked at then.
    """
    return tuple(
        first
        for first, count in ranges
        if any(row not in waits for row in range(first, first + count))
        and is_stale(core, core.row(first), now_ms)
    )


def carry(core: Transactions, command: Carry, _now_ms: int) -> Decision:
    """Copy forward those half messages of a request that are still needed."""
    first = core.table.get(command.first)
    # The first row may be gone, while later ones of its request still wait for their time.
    count = SPAN_MAX if first is None else first.part & ~FIRST
    halves = [
        half
        for half in map(core.table.get, range(command.first, command.first + count))
        if half is not None and half.first == command.first and half.is_needed
    ]
    dropped = deleted_rows(core, halves)
    if dropped:
        gone = set(dropped.rows)
        halves = [half for half in halves if half.half_offset not in gone]
    if not halves:
        return Decision(records=(dropped,) if dropped else ())
    moved = Moved(
        rows=[moved_row(core, half) for half in halves],
        placed=Placed(
            queues=[half.queue for half in halves],
            sizes=[half.size for half in halves],
            crcs=[half.crc for half in halves],
            tags=[half.tags for half in halves],
        ),
    )
    records = (dropped, moved) if dropped else (moved,)
    return Decision(records=records, copies=tuple(half.half_offset for half in halves))


def deleted_rows(core: Transactions, halves: Iterable[Half]) -> Released | None:
    """Those that wait for their time in a topic that was deleted: they will never be visible."""
    if not core.names.lacks_queues:
        return None
    gone = [
        half
        for half in halves
        if half.state is State.COMMITTED and half.queue not in core.queue_ends
    ]
    if not gone:
        return None
    return Released(
        rows=[half.half_offset for half in gone],
        queues=[half.queue for half in gone],
        queue_offsets=[NOWHERE] * len(gone),
    )


def moved_row(core: Transactions, half: Half) -> MovedRow:
    """All that is known of a half message, for the log that will outlive its first frame."""
    is_first = bool(half.part & FIRST)
    transaction_id, number = core.table.identity(half) if is_first else ("", UNNUMBERED)
    return MovedRow(
        half_offset=half.half_offset,
        log_offset=half.log_offset,
        stored_at_ms=half.stored_at_ms,
        origin=half.origin,
        state=half.state,
        checks_sent=half.checks_sent,
        next_at_ms=half.next_at_ms,
        part=half.part,
        head=core.head_of(half.first),
        number=number,
        transaction_id=transaction_id,
        deliver_after_ms=core.delays.get(half.half_offset, 0),
    )


def release(core: Transactions, command: Release, now_ms: int) -> Decision:
    """Make messages visible whose time has come; the others are passed over."""
    halves = [
        half
        # Each once: a table may name a row twice while it moves it from one place to another.
        for half in map(core.table.get, dict.fromkeys(command.half_offsets))
        if half is not None and half.state is State.COMMITTED and half.next_at_ms <= now_ms
    ]
    dropped = deleted_rows(core, halves)
    if dropped:
        halves = [half for half in halves if half.queue in core.queue_ends]
    if not halves:
        return Decision(records=(dropped,) if dropped else ())
    # In the order of their times, so that a queue shows them as they were meant.
    halves.sort(key=lambda half: (half.next_at_ms, half.half_offset))
    queues = [half.queue for half in halves]
    released = Released(
        rows=[half.half_offset for half in halves],
        queues=queues,
        queue_offsets=give_each(core, queues),
    )
    stale = dict.fromkeys(half.first for half in halves if is_stale(core, half, now_ms))
    records = (dropped, released) if dropped else (released,)
    return Decision(records=records, carries=tuple(stale))
