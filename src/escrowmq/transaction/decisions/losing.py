"""Decisions that end transactions which damage has made incomplete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.commands import Abandon, Decision, EndReply
from escrowmq.transaction.decisions.answers import no_such_half
from escrowmq.transaction.records import NEVER, NOWHERE, Decided, Released
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Half


def is_incomplete(core: Transactions, half: Half) -> bool:
    """Whether an undecided half message lacks other requests of its transaction."""
    if half.state not in (State.PREPARED, State.PARKED):
        return False
    head = core.head_of(half.first)
    return core.table.get(head) is None or request_of(core, half) not in core.ranges_of(head)


def request_of(core: Transactions, half: Half) -> tuple[int, int]:
    """Return the rows ``(first, count)`` of this row's request, as far as they are known."""
    first = core.table.get(half.first)
    return (half.first, first.part & ~FIRST) if first is not None else (half.half_offset, 1)


def abandon(core: Transactions, command: Abandon, now_ms: int) -> Decision:
    """End a half message that can never be delivered, because part of its transaction is lost.

    An undecided transaction is rolled back as a whole, so that a part of it is never delivered. A
    committed message that waits for its time gets a queue offset, which a pull skips.
    """
    half = core.table.get(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    if half.state is State.COMMITTED and half.next_at_ms != NEVER:
        # A queue whose topic was deleted gives no offset.
        place = core.queue_ends.get(half.queue, NOWHERE)
        return Decision(records=(Released([half.half_offset], [half.queue], [place]),))
    if half.state in (State.COMMITTED, State.ROLLED_BACK):
        return Decision()
    head = core.head_of(half.first)
    ranges = core.ranges_of(head)
    request = request_of(core, half)
    if request not in ranges:
        ranges = [*ranges, request]
    return Decision(
        records=(Decided(head, State.ROLLED_BACK, command.by, ranges, [], []),),
        reply=EndReply(
            half_offset=head,
            state=State.ROLLED_BACK,
            by=command.by,
            at_ms=now_ms,
            repeated=False,
        ),
    )
