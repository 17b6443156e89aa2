"""Decisions of transactions: each is decided once, for all its half messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.model.refused_states import already
from escrowmq.model.resolution import Resolution
from escrowmq.model.sink_attempt import GROUP_PREFIX, parse_attempt, parse_part
from escrowmq.transaction.commands import Decision, End, EndReply
from escrowmq.transaction.decisions.answers import no_such_half, refuse
from escrowmq.transaction.decisions.assigning import give_ranges, is_deleted, waiting_rows
from escrowmq.transaction.decisions.carrying import stale_requests
from escrowmq.transaction.records import Answered, BatchDecided, Decided, Parked, Span
from escrowmq.transaction.states import RESOLVES, State
from escrowmq.transaction.table import ALONE

if TYPE_CHECKING:
    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.table import Half

TOPIC_DELETED = "topic_deleted"
"""Reason for parking a transaction whose topic was deleted before its commit."""

REMARK_CHARS_MAX = 1_024
"""Characters of a producer's remark that the log keeps."""


def end(core: Transactions, command: End, now_ms: int) -> Decision:
    """Commit or roll back a transaction, once; the first decision stands."""
    half = core.half(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    wrong = disagreement(core, half, command)
    if wrong is not None:
        return wrong
    if command.resolution is Resolution.UNKNOWN:
        return note_unknown(core, half, command)
    target = RESOLVES.get((half.state, command.resolution))
    if target is None or target is half.state:
        return answer_again(core, half, repeated=target is half.state)
    if target is State.COMMITTED and core.names.lacks_queues and has_deleted(core, half):
        return park_deleted(core, half)
    return decide_as(core, half, target, command.by, now_ms, is_forced=command.is_forced)


def has_deleted(core: Transactions, half: Half) -> bool:
    """Whether a topic of the transaction was deleted since its messages were held."""
    return is_deleted(core, core.ranges_of(core.head_of(half.first)))


def park_deleted(core: Transactions, half: Half) -> Decision:
    """Refuse a commit to a deleted topic, and park the transaction: only a rollback ends it."""
    refused = topic_deleted(core, half)
    if half.state is State.PARKED:
        return refused
    parked = Parked(core.head_of(half.first), TOPIC_DELETED)
    return Decision(records=(parked,), refused=refused.refused)


def topic_deleted(core: Transactions, half: Half) -> Decision:
    """Refuse a command for a transaction with messages for a deleted topic."""
    return refuse(
        "topic_deleted",
        "a topic of the transaction was deleted while it was undecided: roll it back",
        half_offset=half.half_offset,
        topic=core.names.named(half.queue).topic,
    )


def disagreement(core: Transactions, half: Half, command: End) -> Decision | None:
    """Refuse a command that expects another half message at this offset; None if it does not."""
    if command.log_offset is not None and command.log_offset != half.log_offset:
        return refuse(
            "log_offset_wrong",
            "the half message is at another log offset",
            half_offset=half.half_offset,
            log_offset=command.log_offset,
        )
    if command.group is not None and not core.names.origins.is_of(half.origin, command.group):
        return refuse(
            "producer_group_wrong",
            "another producer group sent the half message",
            half_offset=half.half_offset,
            producer_group=command.group,
        )
    return _other_transaction(core, half, command)


def _other_transaction(core: Transactions, half: Half, command: End) -> Decision | None:
    """Refuse a command for another transaction, which had these offsets before a restore."""
    if command.epoch and not core.lineage.holds(command.epoch, command.seen_to):
        return refuse(
            "other_history",
            "the broker's history went back in the meantime: read the transaction again",
            half_offset=half.half_offset,
            epoch=command.epoch,
        )
    if command.ids and not any(core.table.may_have_id(half, one) for one in command.ids):
        return refuse(
            "transaction_id_wrong",
            "another transaction has this half message",
            half_offset=half.half_offset,
            transaction_id=command.ids[-1],
        )
    return None


def note_unknown(core: Transactions, half: Half, command: End) -> Decision:
    """Decide nothing; keep the answer to a check for the transaction's life line."""
    if not command.from_check or half.state is not State.PREPARED:
        return Decision()
    head = core.head_row(half)
    remark = command.remark[:REMARK_CHARS_MAX]
    return Decision(records=(Answered(head.half_offset, head.checks_sent, command.by, remark),))


def answer_again(core: Transactions, half: Half, *, repeated: bool) -> Decision:
    """Tell who decided and when: in a reply to the same decision, in a refusal of the opposite."""
    by, at_ms = core.table.decided_by(half)
    named = half.half_offset
    stands = EndReply(half_offset=named, state=half.state, by=by, at_ms=at_ms, repeated=True)
    if repeated:
        return Decision(reply=stands)
    refused = RequestRefused(
        already(half.state.label),
        "the first decision stands",
        half_offset=named,
        by=by,
        at_ms=at_ms,
    )
    return Decision(refused=refused, contradicted=stands)


def decide_as(
    core: Transactions,
    half: Half,
    target: State,
    by: str,
    now_ms: int,
    *,
    is_forced: bool = False,
) -> Decision:
    """Return the decision that commits or rolls back an undecided transaction."""
    named = half.half_offset
    head = core.head_of(half.first)
    is_alone = half.part == ALONE and head == named and head not in core.parts
    ranges = [(named, 1)] if is_alone else core.ranges_of(head)
    reply = EndReply(half_offset=named, state=target, by=by, at_ms=now_ms, repeated=False)
    if target is State.ROLLED_BACK:
        rolled_back = Decided(head, target, by, ranges, [], [], is_forced)
        return Decision(records=(rolled_back,), reply=reply)
    carries: tuple[int, ...] = ()
    waiting: list[tuple[int, int]] = []
    waits: set[int] = set()
    if is_alone and not core.delays:
        # The most common case: one message without a delay.
        given = [Span(half.queue, core.queue_ends[half.queue], 1)]
    else:
        waiting = waiting_rows(core, ranges, now_ms)
        waits = {row for row, _ in waiting}
        given = give_ranges(core, ranges, waits)
    # The head is the oldest: while it is young, no request is stale.
    if half.half_offset != head or now_ms - half.stored_at_ms >= core.copy_after_ms:
        carries = stale_requests(core, ranges, waits, now_ms)
    decided = Decided(head, target, by, ranges, given, waiting, is_forced)
    return Decision(records=(decided, *batch_of_part(core, half, by)), reply=reply, carries=carries)


def batch_of_part(core: Transactions, half: Half, by: str) -> tuple[BatchDecided, ...]:
    """Return the record that remembers the batch, if the half message is a part of an attempt.

    The home of the part decides the batch. If the home is restored to a time before that, only the
    brokers that hold parts know that the batch was committed.
    """
    if half.origin not in core.names.origins.parts:
        return ()
    group = core.names.origins[half.origin].group
    transaction_id, _ = core.table.identity(core.head_row(half))
    home = parse_part(group, transaction_id)
    attempt = home and parse_attempt(home.held_as.producer_group, home.held_as.transaction_id)
    if not attempt:
        return ()
    app_id, query_id = group.removeprefix(GROUP_PREFIX), attempt.run.query_id
    if core.batches.judge(app_id, query_id, attempt.batch) == "done":
        return ()
    return (BatchDecided(app_id, query_id, attempt.batch, by, [], [], [], []),)
