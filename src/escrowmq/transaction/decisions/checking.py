"""Decisions about back-checks and single verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.refused_states import already
from escrowmq.model.resolution import Resolution
from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.transaction.commands import (
    CheckSent,
    Decision,
    End,
    EndReply,
    Park,
    Resume,
    Verdict,
    VerdictKind,
)
from escrowmq.transaction.decisions.answers import of_known_half, refuse
from escrowmq.transaction.decisions.deciding import decide_as, end, has_deleted, topic_deleted
from escrowmq.transaction.records import Asked, Parked, Resumed
from escrowmq.transaction.rules import PARK_REASONS, HalfFacts, ParkReason, check_wait_ms
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Half

_GIVEN_UP = frozenset(reason.value for reason in ParkReason)
"""Reasons to park that the time rules give: neither producer nor ledger decided in time."""


@of_known_half
def check_sent(core: Transactions, command: CheckSent, half: Half, now_ms: int) -> Decision:
    """Count a back-check that a live producer received."""
    head = core.head_row(half)
    if head.state is not State.PREPARED:
        return Decision()
    if _is_exhausted(core, head):
        return _exhausted(core, head)
    number = head.checks_sent + 1
    next_at_ms = now_ms + check_wait_ms(number, core.policy)
    return Decision(records=(Asked(head.half_offset, number, next_at_ms, command.client),))


@of_known_half
def park(core: Transactions, command: Park, half: Half, _now_ms: int) -> Decision:
    """Park a prepared transaction: stop its back-checks."""
    if half.state is not State.PREPARED:
        return refuse(
            already(half.state.label),
            "only a prepared transaction can be parked",
            half_offset=command.half_offset,
        )
    return Decision(records=(Parked(core.head_of(half.first), command.reason),))


@of_known_half
def resume(core: Transactions, command: Resume, half: Half, now_ms: int) -> Decision:
    """Resume the back-checks of a parked transaction, from the first one."""
    if half.state is not State.PARKED:
        return refuse(
            "not_parked",
            "only a parked transaction can be resumed",
            half_offset=command.half_offset,
            state=half.state.label,
        )
    if has_deleted(core, half):
        return topic_deleted(core, half)
    return Decision(records=(Resumed(core.head_of(half.first), now_ms, command.by),))


def obey(core: Transactions, verdict: Verdict, now_ms: int) -> Decision:
    """Carry out a verdict, unless the transaction has changed since the verdict was computed."""
    half = core.half(verdict.half_offset)
    head = None if half is None else core.head_row(half)
    if head is None or (head.state, head.checks_sent) != (verdict.state, verdict.checks_sent):
        return Decision()
    if verdict.kind is VerdictKind.ASK:
        return _ask(core, head)
    if verdict.kind is VerdictKind.PARK:
        if verdict.reason in _GIVEN_UP and _was_resumed(core, head, now_ms):
            return Decision()
        parked = park(core, Park(half_offset=head.half_offset, reason=verdict.reason), now_ms)
        return _discarded(core, head, verdict, parked, now_ms)
    resolution = Resolution(verdict.kind.value)
    return end(
        core, End(half_offset=head.half_offset, resolution=resolution, by=verdict.by), now_ms
    )


def _was_resumed(core: Transactions, head: Half, now_ms: int) -> bool:
    """Whether an operator resumed the transaction, and no rule parks it again.

    It may then have the state and number of checks from which an older verdict was computed.
    """
    resumed_at_ms = core.resumed_at_ms.get(head.half_offset)
    if resumed_at_ms is None:
        return False
    facts = HalfFacts(
        state=head.state,
        age_ms=now_ms - resumed_at_ms,
        wait_ms=head.next_at_ms - now_ms,
        checks_sent=head.checks_sent,
        has_ledger=0,
    )
    return not any(holds(facts, core.policy) for _, holds in PARK_REASONS)


def _discarded(
    core: Transactions, head: Half, verdict: Verdict, parked: Decision, now_ms: int
) -> Decision:
    """Roll back a transaction that no check decided, if the policy says so; else only park it.

    One frame parks the transaction, which keeps its messages in the discard topic, and rolls it
    back. If it names a ledger, only the ledger may roll it back.
    """
    origin = core.names.origins[head.origin]
    is_for_producers = not origin.ledger and not origin.group.startswith(GROUP_PREFIX)
    is_given_up = verdict.reason in _GIVEN_UP and parked.refused is None
    if core.policy.after_last_check == "park" or not (is_for_producers and is_given_up):
        return parked
    ended = decide_as(core, head, State.ROLLED_BACK, verdict.by, now_ms)
    return Decision(records=(*parked.records, *ended.records), reply=ended.reply)


def outcome_of(decision: Decision) -> VerdictOutcome:
    """Return how a verdict ended; ``ASKED`` if the caller must send a back-check now."""
    if decision.refused is not None:
        # The topic was deleted, so the commit was refused and parked the transaction.
        return VerdictOutcome.PARKED if decision.records else VerdictOutcome.REFUSED
    if decision.back_checks:
        return VerdictOutcome.ASKED
    if isinstance(decision.reply, EndReply):
        is_committed = decision.reply.state is State.COMMITTED
        return VerdictOutcome.COMMITTED if is_committed else VerdictOutcome.ROLLED_BACK
    return VerdictOutcome.PARKED if decision.records else VerdictOutcome.STALE


def _ask(core: Transactions, head: Half) -> Decision:
    if head.state is not State.PREPARED:
        return Decision()
    # A check that could not be counted must not be sent either.
    if _is_exhausted(core, head):
        return _exhausted(core, head)
    return Decision(back_checks=(head.half_offset,))


def _is_exhausted(core: Transactions, head: Half) -> bool:
    """Whether all back-checks that the policy allows were sent."""
    return head.checks_sent >= core.policy.checks_max


def _exhausted(core: Transactions, head: Half) -> Decision:
    return refuse(
        "checks_exhausted",
        f"at most {core.policy.checks_max} checks are sent",
        half_offset=head.half_offset,
    )
