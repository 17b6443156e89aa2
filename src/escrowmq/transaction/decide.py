"""What each command leads to: the rules of transactions, one function per command.

Every function here reads the core and answers with a ``Decision``; none changes anything.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.commands import (
    Append,
    Appended,
    BatchReply,
    Carry,
    CheckSent,
    DecideBatch,
    Decision,
    End,
    Held,
    Park,
    Prepare,
    Release,
    Resume,
    Settled,
    Verdict,
    VerdictKind,
)
from escrowmq.transaction.records import (
    PLAIN,
    UNNUMBERED,
    Answered,
    Asked,
    BatchDecided,
    Decided,
    Moved,
    MovedRow,
    NamedOrigin,
    NamedQueue,
    Parked,
    Placed,
    Prepared,
    Record,
    Released,
    Resumed,
    Scheduled,
    Span,
    Stored,
)
from escrowmq.transaction.rules import check_wait_ms
from escrowmq.transaction.states import SETTLES, Resolution, State
from escrowmq.transaction.table import FIRST, SPAN_MAX, Half

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from escrowmq.model.message import Message
    from escrowmq.transaction.core import Transactions


def refuse(code: str, message: str, **facts: object) -> Decision:
    """Answer that it cannot be done, and why."""
    return Decision(refused=RequestRefused(code, message, **facts))


def no_such_half(half_offset: int) -> Decision:
    """Answer that nothing is known of this half message."""
    return refuse(
        "no_such_half_message",
        "it was never stored here, or its retention is over",
        half_offset=half_offset,
    )


# Holding half messages.


def prepare(core: Transactions, command: Prepare, now_ms: int) -> Decision:
    """Hold the half messages of one request, unless they are held already."""
    count = len(command.messages)
    limit = SPAN_MAX if command.bulk else core.policy.messages_max
    if not 1 <= count <= limit:
        return refuse(
            "too_many_messages" if count else "no_messages",
            f"a request holds from 1 to {limit} messages",
            transaction_id=command.transaction_id,
            count=count,
        )
    head = core.table.end
    known = core.table.find(command.transaction_id)
    if known is not None:
        half = core.table.get(known)
        assert half is not None, "what can be found by id is still there"
        if command.number is None:
            if is_resent(core, half, command, now_ms):
                return held_before(core, half.first, count)
        else:
            head = core.head_of(half.first)
            joined = join(core, head, command)
            if joined is not None:
                return joined
    elif command.number:
        return refuse(
            "number_gap",
            "send the requests of a transaction in order, from number 0",
            transaction_id=command.transaction_id,
            number=command.number,
        )
    if not command.bulk and sum_bytes(command.messages) > core.policy.transaction_bytes_max:
        return too_large(core, command)
    return hold(core, command, head, now_ms)


def hold(core: Transactions, command: Prepare, head: int, now_ms: int) -> Decision:
    """The records that hold a new request of the transaction that starts at ``head``."""
    records: list[Record] = []
    origin = core.names.origin_of(command.group, command.ledger, command.allowed_ms)
    if isinstance(origin, NamedOrigin):
        records.append(origin)
        origin = origin.id
    queues = number_queues(core, command.messages, records)
    delays = [message.deliver_after_ms for message in command.messages]
    after_ms = command.check_after_ms
    first = core.table.end
    records.append(
        Prepared(
            first=first,
            head=head,
            origin=origin,
            transaction_id=command.transaction_id,
            number=UNNUMBERED if command.number is None else command.number,
            next_check_at_ms=now_ms
            + (core.policy.check_after_ms if after_ms is None else after_ms),
            deliver_after_ms=delays if any(delays) else [],
            placed=Placed(queues),
        )
    )
    return Decision(
        records=tuple(records),
        reply=Held(half_offset=first, count=len(queues), log_offsets=[]),
        messages=command.messages,
    )


def is_resent(core: Transactions, half: Half, command: Prepare, now_ms: int) -> bool:
    """Whether a stock client sends again the half message that it never saw acknowledged."""
    return (
        len(command.messages) == 1
        and half.state is State.PREPARED
        and now_ms - half.stored_at_ms <= core.policy.resend_window_ms
        and core.names.origins[half.origin].group == command.group
        and core.table.holds(half, command.messages[0])
    )


def join(core: Transactions, head: int, command: Prepare) -> Decision | None:
    """Answer a numbered request of a known transaction; None if it is the next one."""
    half = core.table.get(head)
    assert half is not None, "the head of a known transaction is still there"
    if core.names.origins[half.origin].group != command.group:
        return refuse(
            "producer_group_wrong",
            "another producer group uses this transaction id",
            transaction_id=command.transaction_id,
            producer_group=command.group,
        )
    if half.state in (State.COMMITTED, State.ROLLED_BACK):
        by, at_ms = core.table.decided_by(half)
        return refuse(
            f"already_{half.state.label}",
            "begin a new transaction",
            transaction_id=command.transaction_id,
            half_offset=head,
            by=by,
            at_ms=at_ms,
        )
    ranges = core.ranges_of(head)
    number = command.number or 0
    if number < len(ranges):
        first, count = ranges[number]
        if count != len(command.messages):
            return refuse(
                "number_reused",
                "a repeated request must hold the same messages",
                transaction_id=command.transaction_id,
                number=number,
                count=count,
            )
        return held_before(core, first, count)
    if half.state is State.PARKED:
        return refuse(
            "already_parked",
            "resume or decide the transaction first",
            transaction_id=command.transaction_id,
            half_offset=head,
        )
    if number > len(ranges):
        return refuse(
            "number_gap",
            "send the requests of a transaction in order",
            transaction_id=command.transaction_id,
            number=number,
            expected=len(ranges),
        )
    if command.bulk:
        return None
    parts = core.parts.get(head)
    messages = parts.messages if parts else ranges[0][1]
    held_bytes = parts.bytes if parts else core.table.sizes(*ranges[0])
    if messages + len(command.messages) > core.policy.messages_max:
        return refuse(
            "too_many_messages",
            f"a transaction holds at most {core.policy.messages_max} messages",
            transaction_id=command.transaction_id,
            count=messages + len(command.messages),
        )
    if held_bytes + sum_bytes(command.messages) > core.policy.transaction_bytes_max:
        return too_large(core, command)
    return None


def too_large(core: Transactions, command: Prepare) -> Decision:
    """Answer that a transaction would grow beyond its limit."""
    return refuse(
        "transaction_too_large",
        f"a transaction holds at most {core.policy.transaction_bytes_max} bytes",
        transaction_id=command.transaction_id,
    )


def held_before(core: Transactions, first: int, count: int) -> Decision:
    """Answer a repeated request as the first time."""
    halves = (core.table.get(row) for row in range(first, first + count))
    offsets = [half.log_offset for half in halves if half is not None]
    return Decision(reply=Held(half_offset=first, count=count, log_offsets=offsets, repeated=True))


def number_queues(
    core: Transactions, messages: Iterable[Message], records: list[Record]
) -> list[int]:
    """The queue number of each message; names new queues in ``records``."""
    new: dict[tuple[str, int], NamedQueue] = {}
    known = core.names.queue_ids.get
    queues = [known((message.topic, message.queue_id), -1) for message in messages]
    if -1 in queues:
        queues = [core.names.queue_of(m.topic, m.queue_id, new) for m in messages]
        records.extend(new.values())
    return queues


def sum_bytes(messages: Iterable[Message]) -> int:
    """Bytes that these messages bring with them."""
    return sum([len(message.body) + len(message.properties) for message in messages])


# Ordinary messages.


def append(core: Transactions, command: Append, now_ms: int) -> Decision:
    """Store ordinary messages, or schedule them when they name a later time."""
    count = len(command.messages)
    if not 1 <= count <= SPAN_MAX:
        return refuse(
            "too_many_messages" if count else "no_messages",
            f"a request holds from 1 to {SPAN_MAX} messages",
            count=count,
        )
    records: list[Record] = []
    later = [message.deliver_at_ms for message in command.messages]
    is_later = [at_ms > now_ms for at_ms in later]
    if any(is_later) and not all(is_later):
        return refuse(
            "mixed_delivery_times",
            "send messages for now and messages for later in separate requests",
            count=count,
        )
    queues = number_queues(core, command.messages, records)
    if is_later[0]:
        records.append(Scheduled(first=core.table.end, deliver_at_ms=later, placed=Placed(queues)))
        offsets = [-1] * count
    else:
        offsets = give_each(core, queues)
        records.append(Stored(queue_offsets=offsets, placed=Placed(queues)))
    return Decision(
        records=tuple(records),
        reply=Appended(queue_offsets=offsets, log_offsets=[]),
        messages=command.messages,
    )


def give_each(core: Transactions, queues: list[int]) -> list[int]:
    """The next offset in its queue for each message."""
    ends: dict[int, int] = {}
    known = len(core.queue_ends)
    offsets = []
    for queue in queues:
        offset = ends.get(queue, -1)
        if offset < 0:
            offset = core.queue_ends[queue] if queue < known else 0
        ends[queue] = offset + 1
        offsets.append(offset)
    return offsets


def release(core: Transactions, command: Release, now_ms: int) -> Decision:
    """Make messages visible whose time has come; the others are passed over."""
    halves = [
        half
        for half in map(core.table.get, command.half_offsets)
        if half is not None and half.state is State.COMMITTED and half.next_at_ms <= now_ms
    ]
    if not halves:
        return Decision()
    # In the order of their times, so that a queue shows them as they were meant.
    halves.sort(key=lambda half: (half.next_at_ms, half.half_offset))
    queues = [half.queue for half in halves]
    released = Released(
        rows=[half.half_offset for half in halves],
        queues=queues,
        queue_offsets=give_each(core, queues),
    )
    stale = [half for half in halves if is_stale(core, half, now_ms)]
    return with_copies(core, (released,), stale, None)


# Deciding.


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
    if now_ms - half.stored_at_ms < core.copy_after_ms:
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


def give_ranges(core: Transactions, ranges: list[tuple[int, int]], waiting: set[int]) -> list[Span]:
    """Queue offsets for these rows: in each queue a run, in the order of the rows."""
    counts: Counter[int] = Counter()
    for first, count in ranges:
        queues = core.table.queues(first, count)
        if waiting:
            queues = [queue for row, queue in enumerate(queues, first) if row not in waiting]
        counts.update(queues)
    return [Span(queue, core.queue_ends[queue], count) for queue, count in counts.items()]


# Copying forward.


def is_stale(core: Transactions, half: Half, now_ms: int) -> bool:
    """Whether its bytes are so old that it would not live a whole retention from now."""
    since_ms = half.stored_at_ms
    if half.location != half.log_offset:
        since_ms = core.moved_at_ms.get(half.half_offset, since_ms)
    return now_ms - since_ms >= core.copy_after_ms


def stale_rows(core: Transactions, ranges: list[tuple[int, int]], now_ms: int) -> list[Half]:
    """Those of these rows that must be copied before they become visible."""
    return [
        half
        for first, count in ranges
        for half in map(core.table.get, range(first, first + count))
        if half is not None and is_stale(core, half, now_ms)
    ]


def with_copies(
    core: Transactions, records: tuple[Record, ...], halves: list[Half], reply: Settled | None
) -> Decision:
    """A decision that also carries these half messages forward, in the same frame."""
    if not halves:
        return Decision(records=records, reply=reply)
    moved = Moved(
        rows=[moved_row(core, half) for half in halves],
        placed=Placed(
            queues=[half.queue for half in halves],
            sizes=[half.size for half in halves],
            crcs=[half.crc for half in halves],
            tags=[half.tags for half in halves],
        ),
    )
    return Decision(
        records=(moved, *records),
        reply=reply,
        copies=tuple(half.half_offset for half in halves),
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


def carry(core: Transactions, command: Carry, _now_ms: int) -> Decision:
    """Copy forward those half messages of a request that are still needed.

    One request per frame, so that the frame of a request's first row is found from the row alone.
    """
    first = core.table.get(command.first)
    count = first.part & ~FIRST if first is not None else 1
    halves = [
        half
        for half in map(core.table.get, range(command.first, command.first + count))
        if half is not None and core.table.waits(half.half_offset, 1)
    ]
    return with_copies(core, (), halves, None)


def carry_before(core: Transactions, command: DecideBatch, now_ms: int) -> Carry | None:
    """The next request of a batch that is too old to become visible where it is."""
    if core.batches.judge(command.app_id, command.query_id, command.batch_id) != "new":
        return None
    for claim in command.attempts:
        found = core.table.find(claim.transaction_id)
        half = core.table.get(core.head_of(found)) if found is not None else None
        if half is None or half.state is not State.PREPARED:
            continue
        for first, _ in core.ranges_of(half.half_offset):
            row = core.table.get(first)
            if row is not None and is_stale(core, row, now_ms):
                return Carry(first=first)
    return None


# Back-checks.


def check_sent(core: Transactions, command: CheckSent, now_ms: int) -> Decision:
    """Count a back-check that a live producer received."""
    half = core.table.get(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    head_row = core.table.get(core.head_of(half.first))
    assert head_row is not None
    if head_row.state is not State.PREPARED:
        return Decision()
    number = head_row.checks_sent + 1
    if number > core.policy.checks_max:
        return refuse(
            "checks_exhausted",
            f"at most {core.policy.checks_max} checks are sent",
            half_offset=head_row.half_offset,
        )
    next_at_ms = now_ms + check_wait_ms(number, core.policy)
    return Decision(records=(Asked(head_row.half_offset, number, next_at_ms, command.client),))


def park(core: Transactions, command: Park, _now_ms: int) -> Decision:
    """Stop the checks of an undecided transaction."""
    half = core.table.get(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    if half.state is not State.PREPARED:
        return refuse(
            f"already_{half.state.label}",
            "only an undecided transaction can be parked",
            half_offset=command.half_offset,
        )
    return Decision(records=(Parked(core.head_of(half.first), command.reason),))


def resume(core: Transactions, command: Resume, now_ms: int) -> Decision:
    """Check a parked transaction again, from the first check."""
    half = core.table.get(command.half_offset)
    if half is None:
        return no_such_half(command.half_offset)
    if half.state is not State.PARKED:
        return refuse(
            "not_parked",
            "only a parked transaction can be resumed",
            half_offset=command.half_offset,
            state=half.state.label,
        )
    return Decision(records=(Resumed(core.head_of(half.first), now_ms, command.by),))


def obey(core: Transactions, verdict: Verdict, now_ms: int) -> Decision:
    """Do what the pipeline says, unless the world has moved on since it looked."""
    half = core.table.get(verdict.half_offset)
    if half is None or (half.state, half.checks_sent) != (verdict.state, verdict.checks_sent):
        return Decision()
    if verdict.kind is VerdictKind.ASK:
        return Decision(back_checks=(half.half_offset,))
    if verdict.kind is VerdictKind.PARK:
        return park(core, Park(half_offset=half.half_offset, reason=verdict.reason), now_ms)
    resolution = Resolution(verdict.kind.value)
    return end(
        core, End(half_offset=half.half_offset, resolution=resolution, by=verdict.by), now_ms
    )


# The Spark sink.


def decide_batch(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """Commit all attempts of a batch, once; what a finished batch sends again is rolled back."""
    judged = core.batches.judge(command.app_id, command.query_id, command.batch_id)
    if judged == "taken":
        return refuse(
            "batch_decided_by_another_query",
            "give this query an app id of its own, or bring its checkpoint back",
            app_id=command.app_id,
            query_id=command.query_id,
            batch_id=command.batch_id,
        )
    if judged == "done":
        return roll_back_attempts(core, command, now_ms)
    heads: list[int] = []
    ranges: list[tuple[int, int]] = []
    for claim in command.attempts:
        head = core.table.find(claim.transaction_id)
        half = core.table.get(core.head_of(head)) if head is not None else None
        if half is None or half.state is not State.PREPARED or half.half_offset in heads:
            return refuse(
                "attempt_not_prepared",
                "write the batch again, each attempt named once",
                attempt=claim.transaction_id,
                batch_id=command.batch_id,
            )
        held = core.ranges_of(half.half_offset)
        rows = sum(count for _, count in held)
        if (claim.last_number, claim.rows) != (len(held) - 1, rows):
            return refuse(
                "attempt_differs",
                "the attempt does not hold what its writer reported",
                attempt=claim.transaction_id,
                last_number=len(held) - 1,
                rows=rows,
            )
        heads.append(half.half_offset)
        ranges.extend(held)
    given = give_ranges(core, ranges, set())
    record = BatchDecided(
        command.app_id, command.query_id, command.batch_id, command.by, heads, ranges, given
    )
    rows = sum(count for _, count in ranges)
    return Decision(records=(record,), reply=BatchReply(outcome="decided", rows=rows))


def roll_back_attempts(core: Transactions, command: DecideBatch, now_ms: int) -> Decision:
    """The batch is done already: its new attempts must never become visible."""
    records: list[Record] = []
    for claim in command.attempts:
        found = core.table.find(claim.transaction_id)
        half = core.table.get(found) if found is not None else None
        if half is not None and half.state in (State.PREPARED, State.PARKED):
            ending = End(
                half_offset=half.half_offset, resolution=Resolution.ROLLBACK, by=command.by
            )
            records.extend(end(core, ending, now_ms).records)
    return Decision(records=tuple(records), reply=BatchReply(outcome="already_done", rows=0))


# Commands are told apart by their type alone, so the table's values take what its keys name.
DECIDERS: dict[type, Callable[[Transactions, Any, int], Decision]] = {
    Prepare: prepare,
    Append: append,
    Release: release,
    End: end,
    Carry: carry,
    CheckSent: check_sent,
    Park: park,
    Resume: resume,
    Verdict: obey,
    DecideBatch: decide_batch,
}
