"""The outcome that each command must have: the model's rules, one function per command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.transaction import commands as c
from escrowmq.transaction.recall_commands import Recall, RecallReply
from escrowmq.transaction.rules import ParkReason
from escrowmq.transaction.states import State
from tests.crash.model import NEVER, Step, Transaction, World, Wrong, decided_state

YOUNG_MS = 1_000


def follow(world: World, step: Step) -> World:
    """Return the world after this command; raise ``Wrong`` if the store's answer is not allowed."""
    after = world.copy()
    at_ms = max(step.now_ms, world.at_ms)
    if step.decision.records:
        after.at_ms = at_ms
    changes = RULES[type(step.command)](after, step.command, step.decision, at_ms)
    if changes != bool(step.decision.records):
        raise Wrong(f"{step.command} must {'' if changes else 'not '}be recorded: {step.decision}")
    return after


def must(expected: object, actual: object, what: object) -> None:
    """Raise ``Wrong`` unless they are equal."""
    if expected != actual:
        raise Wrong(f"{what}: expected {expected!r}, got {actual!r}")


def must_refuse(code: str, decision: c.Decision, command: c.Command) -> bool:
    """Raise ``Wrong`` unless it was refused with this code; a refusal changes nothing."""
    must(code, decision.refused.code if decision.refused else None, command)
    return False


def prepare(world: World, command: c.Prepare, decision: c.Decision, at_ms: int) -> bool:
    known = world.newest(command.transaction_id)
    if known is not None and known.is_numbered != (command.number is not None):
        known = None
    if command.number is None:
        if known is not None and is_resent(world, known, command, at_ms):
            return must_repeat(world, known.requests[-1], decision, command)
        known = None
    elif known is None:
        if command.number:
            return must_refuse("number_gap", decision, command)
    else:
        refused = refusal_to_join(world, known, command)
        if refused:
            return must_refuse(refused, decision, command)
        if command.number < len(known.requests):
            return must_repeat(world, known.requests[command.number], decision, command)
    reply = decision.reply
    if not isinstance(reply, c.HoldReply):
        raise Wrong(f"{command}: not held but {decision}")
    first = len(world.rows)
    given = (reply.half_offset, reply.count, reply.repeated)
    must((first, len(command.messages), False), given, command)
    head = first if known is None else known.head
    world.hold(command.messages, reply.log_offsets, head)
    request = (first, len(command.messages))
    if known is not None:
        world.set_state(known, requests=(*known.requests, request))
        return True
    after_ms = command.check_after_ms
    world.transactions[head] = Transaction(
        head=head,
        group=command.group,
        transaction_id=command.transaction_id,
        requests=(request,),
        next_at_ms=at_ms + (world.policy.check_after_ms if after_ms is None else after_ms),
        is_numbered=command.number is not None,
    )
    return True


def is_resent(world: World, known: Transaction, command: c.Prepare, at_ms: int) -> bool:
    """Whether a stock client repeats its recent request."""
    first, _ = known.requests[-1]
    row = world.rows[first]
    return (
        len(command.messages) == 1
        and known.state in (State.PREPARED, State.PARKED)
        and known.group == command.group
        and at_ms - row.stored_at_ms <= world.policy.resend_window_ms
        and (row.message.topic, row.message.body)
        == (command.messages[0].topic, command.messages[0].body)
    )


def content(message: SentMessage) -> tuple[str, int, bytes]:
    return message.topic, message.queue_id, message.body


def refusal_to_join(world: World, known: Transaction, command: c.Prepare) -> str:
    number = command.number or 0
    if known.group != command.group:
        return "producer_group_wrong"
    if known.state in (State.COMMITTED, State.ROLLED_BACK):
        return f"already_{known.state.label}"
    if number < len(known.requests):
        first, count = known.requests[number]
        held = [content(world.rows[row].message) for row in range(first, first + count)]
        return "" if held == [content(one) for one in command.messages] else "number_reused"
    if known.state is State.PARKED:
        return "already_parked"
    return "number_gap" if number > len(known.requests) else ""


def must_repeat(
    world: World, request: tuple[int, int], decision: c.Decision, command: c.Command
) -> bool:
    first, count = request
    offsets = [world.rows[row].log_offset for row in range(first, first + count)]
    expected = c.HoldReply(half_offset=first, count=count, log_offsets=offsets, repeated=True)
    must(expected, decision.reply, command)
    return False


def append(world: World, command: c.Append, decision: c.Decision, at_ms: int) -> bool:
    later = [message.deliver_at_ms > at_ms for message in command.messages]
    if any(later) and not all(later):
        return must_refuse("mixed_delivery_times", decision, command)
    reply = decision.reply
    if not isinstance(reply, c.Appended):
        raise Wrong(f"{command}: not stored but {decision}")
    if not later[0]:
        given = [
            world.store(message, log_offset, at_ms)
            for message, log_offset in zip(command.messages, reply.log_offsets, strict=True)
        ]
        must(given, reply.queue_offsets, command)
        return True
    must([-1] * len(later), reply.queue_offsets, command)
    first = world.hold(command.messages, reply.log_offsets, None)
    for row, message in enumerate(command.messages, first):
        world.rows[row] = world.rows[row]._replace(
            state=State.COMMITTED, deliver_at_ms=message.deliver_at_ms
        )
    return True


def end(world: World, command: c.End, decision: c.Decision, at_ms: int) -> bool:
    known = world.transaction_of(command.half_offset)
    if known is None or (
        is_forgettable(world, command.half_offset)
        and decision.refused
        and decision.refused.code == "no_such_half_message"
    ):
        return must_refuse("no_such_half_message", decision, command)
    if command.group is not None and command.group != known.group:
        return must_refuse("producer_group_wrong", decision, command)
    if command.resolution is Resolution.UNKNOWN:
        must(None, decision.refused, command)
        return command.from_check and known.state is State.PREPARED
    wanted = decided_state(command.resolution)
    if known.state in (State.PREPARED, State.PARKED):
        reply = c.EndReply(
            half_offset=command.half_offset,
            state=wanted,
            by=command.by,
            at_ms=at_ms,
            repeated=False,
        )
        must(reply, decision.reply, command)
        world.settle(known, wanted, command.by)
        return True
    if wanted is known.state:
        said = decision.reply
        assert isinstance(said, c.EndReply), decision
        must(command.half_offset, said.half_offset, command)
        facts = (said.state, said.by, said.at_ms, said.repeated)
        by, decided_at_ms = decided(world, known, said.by)
        must((known.state, by, decided_at_ms, True), facts, command)
        return False
    must_refuse(f"already_{known.state.label}", decision, command)
    assert decision.refused is not None
    fields = decision.refused.fields
    must(decided(world, known, fields["by"]), (fields["by"], fields["at_ms"]), command)
    return False


def decided(world: World, known: Transaction, said: object) -> tuple[str, int]:
    """Return who decided, and when; both are lost when retention deletes the op record."""
    if not said and known.decided_at_ms <= world.deleted_until_ms:
        return "", 0
    return known.by, known.decided_at_ms


def is_forgettable(world: World, row: int) -> bool:
    """Whether retention may have deleted this row."""
    known = world.rows[row]
    return not known.is_needed and known.stored_at_ms <= world.deleted_until_ms


def check_sent(world: World, command: c.CheckSent, decision: c.Decision, at_ms: int) -> bool:
    known = world.transaction_of(command.half_offset)
    if known is None:
        return must_refuse("no_such_half_message", decision, command)
    if known.state is not State.PREPARED:
        return False
    policy = world.policy
    number = known.checks_sent + 1
    if number > policy.checks_max:
        return must_refuse("checks_exhausted", decision, command)
    wait_ms = int(policy.check_interval_ms * policy.check_backoff ** (number - 1))
    next_at_ms = at_ms + min(wait_ms, policy.check_interval_max_ms)
    world.set_state(known, checks_sent=number, next_at_ms=next_at_ms)
    return True


def park(world: World, command: c.Park, decision: c.Decision, _at_ms: int) -> bool:
    known = world.transaction_of(command.half_offset)
    if known is None:
        return must_refuse("no_such_half_message", decision, command)
    if known.state is not State.PREPARED:
        return must_refuse(f"already_{known.state.label}", decision, command)
    world.set_state(known, state=State.PARKED, next_at_ms=NEVER)
    return True


def resume(world: World, command: c.Resume, decision: c.Decision, at_ms: int) -> bool:
    known = world.transaction_of(command.half_offset)
    if known is None:
        return must_refuse("no_such_half_message", decision, command)
    if known.state is not State.PARKED:
        return must_refuse("not_parked", decision, command)
    world.set_state(
        known, state=State.PREPARED, checks_sent=0, next_at_ms=at_ms, resumed_at_ms=at_ms
    )
    return True


def _is_too_early(world: World, known: Transaction, at_ms: int) -> bool:
    """Whether it was resumed so recently that neither checks nor age park it again."""
    if known.resumed_at_ms is None:
        return False
    is_exhausted = known.checks_sent >= world.policy.checks_max
    return not is_exhausted and at_ms - known.resumed_at_ms < world.policy.park_after_ms


def obey(world: World, command: c.Verdict, decision: c.Decision, at_ms: int) -> bool:
    known = world.transaction_of(command.half_offset)
    if known is None or (known.state, known.checks_sent) != (command.state, command.checks_sent):
        must(c.Decision(), decision, command)
        return False
    if command.kind is c.VerdictKind.ASK:
        is_open = known.state is State.PREPARED
        must((known.head,) if is_open else (), decision.back_checks, command)
        return False
    if command.kind is c.VerdictKind.PARK:
        if command.reason in tuple(ParkReason) and _is_too_early(world, known, at_ms):
            must(c.Decision(), decision, command)
            return False
        return park(world, c.Park(half_offset=known.head, reason=""), decision, at_ms)
    resolution = Resolution(command.kind.value)
    ending = c.End(half_offset=known.head, resolution=resolution, by=command.by)
    return end(world, ending, decision, at_ms)


def obey_many(world: World, command: c.Verdicts, decision: c.Decision, at_ms: int) -> bool:
    """Each verdict must have its expected end; the store may leave all but the simplest ones."""
    reply = decision.reply
    assert isinstance(reply, c.Obeyed), decision
    changes = False
    seen: set[int] = set()
    columns = (command.half_offsets, command.commits, command.states, command.checks_sent)
    for end, row, is_commit, *version in zip(reply.ends, *columns, strict=True):
        known = world.transaction_of(row)
        is_repeated = row in seen
        seen.add(row)
        if end == c.Ended.LEFT:
            # The store leaves every verdict on a row after the first one.
            if known is not None and not is_repeated and is_simple(world, known, at_ms):
                raise Wrong(f"{known} was left by {command}")
            continue
        assert known is not None, command
        is_current = [known.state, known.checks_sent] == version
        if end == c.Ended.STALE:
            must(expected=False, actual=is_current, what=command)
            continue
        wanted = State.COMMITTED if is_commit else State.ROLLED_BACK
        must((True, wanted.name), (is_current, c.Ended(end).name), command)
        must(expected=True, actual=known.state in (State.PREPARED, State.PARKED), what=command)
        world.settle(known, wanted, command.by)
        changes = True
    return changes


def is_simple(world: World, known: Transaction, at_ms: int) -> bool:
    """Whether the transaction is simple enough to be decided together with others."""
    row = world.rows[known.head]
    return (
        len(known.rows) == 1
        and row.is_undecided
        and not row.message.deliver_after_ms
        # Older rows may have left their chunk, or must be carried forward.
        and at_ms - row.stored_at_ms < YOUNG_MS
    )


def decide_batch(world: World, command: c.DecideBatch, decision: c.Decision, _at_ms: int) -> bool:
    decided = {
        query: batch
        for (app, query, batch) in world.batches
        if app == command.app_id and is_done(batch, command.batch_id)
    }
    if command.query_id in decided:
        must(c.BatchReply(outcome="already_done", rows=0), decision.reply, command)
        return roll_back_attempts(world, command)
    if decided:
        return must_refuse("batch_decided_by_another_query", decision, command)
    attempts: list[Transaction] = []
    for claim in command.attempts:
        known = world.newest(claim.transaction_id)
        if known is None or known.state is not State.PREPARED or known in attempts:
            return must_refuse("attempt_not_prepared", decision, command)
        if (claim.last_number, claim.rows) != (len(known.requests) - 1, len(known.rows)):
            return must_refuse("attempt_differs", decision, command)
        attempts.append(known)
    rows = sum(len(attempt.rows) for attempt in attempts)
    must(c.BatchReply(outcome="decided", rows=rows), decision.reply, command)
    for attempt in attempts:
        world.settle(attempt, State.COMMITTED, command.by)
    world.batches[command.app_id, command.query_id, command.batch_id] = world.at_ms
    return True


def is_done(decided: int | str, asked: int | str) -> bool:
    """Whether a decided batch covers this one: a name covers itself, a number also all below it."""
    if isinstance(decided, int) and isinstance(asked, int):
        return decided >= asked
    return decided == asked


def roll_back_attempts(world: World, command: c.DecideBatch) -> bool:
    changed = False
    for claim in command.attempts:
        known = world.newest(claim.transaction_id)
        if known is not None and known.state in (State.PREPARED, State.PARKED):
            world.settle(known, State.ROLLED_BACK, command.by)
            changed = True
    return changed


def release(world: World, command: c.Release, decision: c.Decision, at_ms: int) -> bool:
    must(None, decision.refused, command)
    known = [world.rows[row] for row in command.half_offsets if row in world.rows]
    due = [row for row in known if row.is_waiting and row.deliver_at_ms <= at_ms]
    for row in sorted(due, key=lambda row: (row.deliver_at_ms, row.number)):
        world.show(row.number, at_ms)
    return bool(due)


def recall(world: World, command: Recall, decision: c.Decision, _at_ms: int) -> bool:
    row = world.rows.get(command.half_offset)
    is_its = row is not None and row.head is None and row.log_offset == command.log_offset
    if (
        row is None
        or not is_its
        or (
            is_forgettable(world, row.number)
            and decision.refused
            and decision.refused.code == "no_such_delayed_message"
        )
    ):
        return must_refuse("no_such_delayed_message", decision, command)
    if row.state is State.COMMITTED and not row.is_waiting:
        return must_refuse("recall_too_late", decision, command)
    repeated = row.state is State.ROLLED_BACK
    must(RecallReply(half_offset=row.number, repeated=repeated), decision.reply, command)
    world.rows[row.number] = row._replace(state=State.ROLLED_BACK)
    return not repeated


RULES: dict[type, Callable[[World, Any, c.Decision, int], bool]] = {
    c.Prepare: prepare,
    c.Append: append,
    c.End: end,
    c.CheckSent: check_sent,
    c.Park: park,
    c.Resume: resume,
    c.Verdict: obey,
    c.Verdicts: obey_many,
    c.DecideBatch: decide_batch,
    c.Release: release,
    Recall: recall,
}
