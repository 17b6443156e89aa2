"""Carrying half messages forward, for retention or because they become visible very late.

A carried half message has the same bytes at a later log offset, and keeps its identity. Each
request is carried in frames of its own, so no frame is larger than a request, and the frame of a
request's first row is found from the row alone. Ordinary messages that were sent alone share a
frame when they become visible together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from escrowmq.transaction.commands import Carry, CarryAlone, Decision, Release
from escrowmq.transaction.decisions.assigning import give_each
from escrowmq.transaction.records import (
    NEVER,
    NOWHERE,
    PLAIN,
    UNNUMBERED,
    Carried,
    CarriedRow,
    Placed,
    Released,
)
from escrowmq.transaction.states import State
from escrowmq.transaction.table import ALONE, FIRST, SPAN_MAX, Half

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Numbers


def is_stale(core: Transactions, half: Half, now_ms: int) -> bool:
    """Whether its bytes are ``copy_after_ms`` old or more; a copy stays for a full retention."""
    since_ms = half.stored_at_ms
    if half.location != half.log_offset:
        since_ms = core.carried_at_ms.get(half.first, since_ms)
    return now_ms - since_ms >= core.copy_after_ms


def stale_requests(
    core: Transactions, ranges: Iterable[tuple[int, int]], waits: set[int], now_ms: int
) -> tuple[int, ...]:
    """Return those of these requests, by first row, to carry before they become visible.

    A request whose rows all wait is skipped: it is examined when they become visible.
    """
    return tuple(
        first
        for first, count in ranges
        if any(row not in waits for row in range(first, first + count))
        and is_stale(core, core.row(first), now_ms)
    )


def carry(core: Transactions, command: Carry, _now_ms: int) -> Decision:
    """Carry forward the half messages of a request that are still needed."""
    rows = range(*command.part) if command.part is not None else _rows_of(core, command.first)
    halves = [
        half
        for half in map(core.table.get, rows)
        if half is not None and half.first == command.first and half.is_needed
    ]
    return _copied(core, halves, command.since_ms)


def carry_alone(core: Transactions, command: CarryAlone, _now_ms: int) -> Decision:
    """Carry forward ordinary messages that become visible now.

    They share a frame, because an ordinary message has no transaction to look up in it. A frame for
    each takes twice as long.
    """
    return _copied(core, command.halves, 0)


def _copied(core: Transactions, halves: Sequence[Half], since_ms: int) -> Decision:
    # A message that waits for its time in a deleted topic will never be visible.
    gone = [half for half in halves if is_waiting_in_deleted(core, half)]
    dropped = _dropped([half.half_offset for half in gone], [half.queue for half in gone])
    if gone:
        halves = [half for half in halves if not is_waiting_in_deleted(core, half)]
    if not halves:
        return Decision(records=dropped)
    carried = Carried(
        rows=[carried_row(core, half) for half in halves],
        placed=Placed(
            queues=[half.queue for half in halves],
            sizes=[half.size for half in halves],
            crcs=[half.crc for half in halves],
            tags=[half.tags for half in halves],
        ),
        since_ms=since_ms,
    )
    return Decision(records=(*dropped, carried), copies=tuple(halves))


def is_waiting_in_deleted(core: Transactions, half: Half) -> bool:
    """Whether a message waits for its time in a queue of a deleted topic."""
    return half.state is State.COMMITTED and half.queue not in core.queue_ends


def _are_deleted(core: Transactions, queues: Numbers) -> Numbers:
    """Return a mask of the queues whose topic was deleted."""
    if not core.names.lacks_queues:
        return np.zeros(len(queues), dtype=np.bool_)
    gone = set(np.unique(queues).tolist()) - core.queue_ends.keys()
    return np.isin(queues, list(gone))


def _dropped(rows: list[int], queues: list[int]) -> tuple[Released, ...]:
    """Return a record that these rows of deleted topics never become visible; none for no rows."""
    return (Released(rows, queues, [NOWHERE] * len(rows)),) if rows else ()


def _rows_of(core: Transactions, first: int) -> range:
    """Return the rows of a request.

    If the first row is gone, its count is unknown, and later rows may still wait for their time.
    """
    half = core.table.get(first)
    return range(first, first + (SPAN_MAX if half is None else half.part & ~FIRST))


def carried_row(core: Transactions, half: Half) -> CarriedRow:
    """Return everything known about a half message, because the log will lose its first frame."""
    # An ordinary message has no transaction, so its frame need not be read.
    is_named = half.part & FIRST and half.origin != PLAIN
    transaction_id, number = core.table.identity(half) if is_named else ("", UNNUMBERED)
    return CarriedRow(
        half_offset=half.half_offset,
        log_offset=half.log_offset,
        stored_at_ms=half.stored_at_ms,
        origin=half.origin,
        part=half.part,
        head=core.head_of(half.first),
        number=number,
        transaction_id=transaction_id,
        state=half.state,
        checks_sent=half.checks_sent,
        next_at_ms=half.next_at_ms,
        deliver_after_ms=core.delays.get(half.half_offset, 0),
    )


def release(core: Transactions, command: Release, now_ms: int) -> Decision:
    """Make due messages visible; skip the others."""
    # Drop duplicates: a table may name a row twice while the row changes its place.
    rows = np.array(list(dict.fromkeys(command.half_offsets)), dtype=np.int64)
    held = core.table.columns(rows)
    for index in np.flatnonzero(~held.is_here).tolist():
        half = core.table.get(int(rows[index]))
        # A row that is gone is never due.
        held.next_at_ms[index] = NEVER if half is None else half.next_at_ms
        if half is not None:
            held.state[index], held.queue[index] = half.state, half.queue
            held.stored_at_ms[index] = half.stored_at_ms
    is_due = (held.state == int(State.COMMITTED)) & (held.next_at_ms <= now_ms)
    # In the order of their times, so that each queue shows them in that order.
    order = np.lexsort((rows, held.next_at_ms))
    order = order[is_due[order]]
    is_deleted = _are_deleted(core, held.queue[order])
    dropped = _dropped(rows[order[is_deleted]].tolist(), held.queue[order[is_deleted]].tolist())
    order = order[~is_deleted]
    if not len(order):
        return Decision(records=dropped)
    queues = held.queue[order].tolist()
    released = Released(
        rows=rows[order].tolist(), queues=queues, queue_offsets=give_each(core, queues)
    )
    may_be_stale = now_ms - held.stored_at_ms[order] >= core.copy_after_ms
    old = map(core.row, rows[order[may_be_stale]].tolist())
    stale = [half for half in old if is_stale(core, half, now_ms)]
    alone = [half for half in stale if is_alone(half)]
    requests = dict.fromkeys(half.first for half in stale if not is_alone(half))
    return Decision(
        records=(*dropped, released), carries=tuple(requests), carries_alone=tuple(alone)
    )


def is_alone(half: Half) -> bool:
    """Whether this is an ordinary message, the only one of its request."""
    return half.origin == PLAIN and half.part == ALONE
