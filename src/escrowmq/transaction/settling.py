"""Deciding transactions: one decision each, for all their half messages, and it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.transaction.answers import no_such_half, refuse
from escrowmq.transaction.commands import Decision, End, Settled
from escrowmq.transaction.copying import stale_rows, with_copies
from escrowmq.transaction.giving import give_ranges
from escrowmq.transaction.records import PLAIN, Answered, Decided
from escrowmq.transaction.states import SETTLES, Resolution, State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Half


def end(core: Transactions, command: End, now_ms: int) -> Decision:
    """Commit or roll back, once; the first decision stands."""
    half = core.table.get(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    wrong = disagreement(core, half, command)
    if wrong is not None:
        return wrong
    head = core.head_of(half.first)
    if command.resolution is Resolution.UNKNOWN:
        if command.from_check and half.state is State.PREPARED:
            sent = core.table.get(head)
            assert sent is not None
            return Decision(records=(Answered(head, sent.checks_sent, command.by),))
        return Decision()
    settled = SETTLES.get((half.state, command.resolution))
    if settled is None or settled is half.state:
        return answer_again(core, half, head, repeated=settled is half.state)
    ranges = core.ranges_of(head)
    reply = Settled(half_offset=head, state=settled, by=command.by, at_ms=now_ms, repeated=False)
    if settled is State.ROLLED_BACK:
        return Decision(records=(Decided(head, settled, command.by, ranges, [], []),), reply=reply)
    waiting = (
        [
            (row, now_ms + core.delays[row])
            for first, count in ranges
            for row in range(first, first + count)
            if row in core.delays
        ]
        if core.delays
        else []
    )
    given = give_ranges(core, ranges, {row for row, _ in waiting})
    decided = Decided(head, settled, command.by, ranges, given, waiting)
    # The head is the oldest, whichever of its half messages the caller named.
    oldest = core.table.get(head) if head != half.half_offset else half
    assert oldest is not None, "the head of an undecided transaction is still there"
    if now_ms - oldest.stored_at_ms < core.copy_after_ms:
        return Decision(records=(decided,), reply=reply)
    stale = stale_rows(core, ranges, now_ms)
    return with_copies(core, (decided,), stale, reply)


def disagreement(core: Transactions, half: Half, command: End) -> Decision | None:
    """What the caller believes of the half message and is not so."""
    if half.origin == PLAIN:
        return no_such_half(half.half_offset)
    if command.log_offset is not None and command.log_offset != half.log_offset:
        return refuse(
            "log_offset_wrong",
            "the half message is at another log offset",
            half_offset=half.half_offset,
            log_offset=command.log_offset,
        )
    group = core.names.origins[half.origin].group
    if command.group is not None and command.group != group:
        return refuse(
            "producer_group_wrong",
            "another producer group sent the half message",
            half_offset=half.half_offset,
            producer_group=command.group,
        )
    return None


def answer_again(core: Transactions, half: Half, head: int, *, repeated: bool) -> Decision:
    """Tell who decided and when: to the same decision as before, to the opposite as a refusal."""
    by, at_ms = core.table.decided_by(half)
    if repeated:
        return Decision(
            reply=Settled(half_offset=head, state=half.state, by=by, at_ms=at_ms, repeated=True)
        )
    return refuse(
        f"already_{half.state.label}",
        "the first decision stands",
        half_offset=head,
        by=by,
        at_ms=at_ms,
    )
