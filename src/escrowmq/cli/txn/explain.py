"""Text of ``escrowmq txn explain``: why a transaction is in its state, and what comes next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from escrowmq.cli.admin.ledger_text import LedgerReach, LedgersTold, explained_ledger, standing_of
from escrowmq.cli.asking import at, duration
from escrowmq.cli.preview import escaped
from escrowmq.cli.txn.explain_sink import held_by_sink, is_of_sink
from escrowmq.protocol.native.headers import (
    LifeLineAnswer,
    ListTransactionsHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import EventRow
from escrowmq.protocol.native.status_answer import StatusAnswer
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.rules import Due, HalfFacts, check_wait_ms, due
from escrowmq.transaction.states import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from escrowmq.client.network.native_calls import NativeCalls

ANSWER_SEARCH_S = 5.0
"""How long the log is searched for the last answer about an undecided transaction."""

DECIDED = ("committed", "rolled_back")


def what_matters(calls: NativeCalls, head: LifeLineAnswer) -> list[EventRow]:
    """Read the events that explain the state of a transaction.

    Reading all of its events would search the log up to its end.
    """
    events: list[EventRow] = []
    until = time.monotonic() + ANSWER_SEARCH_S
    for page in calls.pages(NativeCode.LIFE_LINE, TransactionHeader(half_offset=head.half_offset)):
        events += page.rows
        if _is_enough(head, page.rows) or (head.state == "prepared" and time.monotonic() >= until):
            break
    if head.state == "prepared":
        first = head.half_offset
        asked = ListTransactionsHeader(start=first, end=first + 1, states="prepared")
        listed = calls.call(NativeCode.LIST_TRANSACTIONS, asked)
        # The age of a resumed transaction counts from when it was resumed.
        events += [
            EventRow(listed.header.now_ms - row.age_ms, "resumed", -1, "", "")
            for row in listed.rows
            if row.age_ms < listed.header.now_ms - row.stored_at_ms
        ]
    return events


def _is_enough(head: LifeLineAnswer, events: Sequence[EventRow]) -> bool:
    """Return whether these events, the newest that were read, explain the state."""
    if head.state != "prepared":
        # A parked transaction may have been parked before, for another reason.
        return head.state != "parked" and any(event.event == head.state for event in events)
    last = f"check {head.checks_sent}"
    return not head.checks_sent or any(
        event.event == "answered" and event.detail.partition(": ")[0] == last for event in events
    )


def explained(
    head: LifeLineAnswer,
    events: Sequence[EventRow],
    told: StatusAnswer,
    *,
    due_before: int = 0,
    ledgers: LedgersTold | None = None,
) -> list[str]:
    """Return the explanation as sentences.

    ``due_before`` is the number of transactions of its group that have been due for longer.
    ``ledgers`` is what the broker knows about ledgers.
    """
    known = ledgers or LedgersTold()
    held = next((event for event in events if event.event == "held"), None)
    since = "" if held is None else f" It was stored {duration(told.now_ms - held.at_ms)} ago."
    lines = [f"Transaction {head.transaction_id} is {head.state}.{since}"]
    if head.state in DECIDED:
        return [*lines, *_decided(head, events)]
    if head.state == "parked":
        why = explained_ledger(head.ledger, known, told.now_ms) if head.ledger else ()
        return [*lines, *_parked(events, told), *_last_answer(events), *why]
    return [*lines, *_undecided(head, events, told, due_before, known)]


def _decided(head: LifeLineAnswer, events: Sequence[EventRow]) -> Iterator[str]:
    by = next((event for event in events if event.event == head.state), None)
    if by is not None:
        yield f"It was decided by {by.by or 'an unknown client'} at {at(by.at_ms)}."
    yield "A decision is final, so no more checks follow."


def _parked(events: Sequence[EventRow], told: StatusAnswer) -> Iterator[str]:
    parked = [event for event in events if event.event == "parked"]
    why = parked[-1].detail if parked else "unknown"
    meaning = {
        "exhausted": f"its producers were asked {told.checks_max} times and gave no outcome",
        "past_retention": f"it was still undecided after {duration(told.park_after_ms)}",
        "maybe_swept": "the broker's history went back, and the ledger's row may have been deleted",
    }.get(why, why)
    yield f"It was parked ({why}): {meaning}. The broker keeps it and does not deliver it."
    yield "It gets no more checks. escrowmq txn resume starts its checks again, from the first one;"
    yield "escrowmq txn commit or rollback decides it by hand."


def _undecided(
    head: LifeLineAnswer,
    events: Sequence[EventRow],
    told: StatusAnswer,
    due_before: int,
    ledgers: LedgersTold,
) -> Iterator[str]:
    if is_of_sink(head.producer_group):
        yield from held_by_sink(head.producer_group, head.transaction_id)
    else:
        standing = standing_of(head.ledger, ledgers)[0] if head.ledger else None
        if head.ledger:
            yield from explained_ledger(head.ledger, ledgers, told.now_ms)
        if standing is LedgerReach.NOT_CONFIGURED:
            # The pipeline treats it like a transaction without a ledger.
            head = msgspec.structs.replace(head, ledger="")
        yield from _checked(head, events, told, due_before, standing)
    yield from _checker(told)


def _checker(told: StatusAnswer) -> Iterator[str]:
    """Say which process checks, unless it is a pipeline that works."""
    if told.checker == "none":
        yield "Checks are off (transaction.checked_by = off): nothing checks or parks it."
    elif told.checker == "broker":
        yield f"The broker checks by itself since {at(told.checker_since_ms)}."
        if told.round_error:
            yield f"Its last round failed: {escaped(told.round_error)}"
    elif told.pipeline_away_since_ms:
        yield (
            f"The pipeline is away since {at(told.pipeline_away_since_ms)}, so no check is sent. "
            "Start escrowmq up or escrowmq pipeline."
        )


def _checked(
    head: LifeLineAnswer,
    events: Sequence[EventRow],
    told: StatusAnswer,
    due_before: int,
    standing: LedgerReach | None,
) -> Iterator[str]:
    if not head.ledger:
        yield (
            f"{head.producers_online} producers of group {head.producer_group} are online; "
            f"{head.checks_sent} of {told.checks_max} checks were sent."
        )
    yield from _last_answer(events)
    due = _due(head, events, told)
    if due is Due.WAIT:
        yield from _waiting(head, told)
    elif due is Due.PARK:
        does = "parks it" if told.after_last_check == "park" or head.ledger else "rolls it back"
        yield f"The next round {does} ({_park_why(head, told)})."
    elif due is Due.LOOK_UP and standing in (LedgerReach.UNREACHED, LedgerReach.MAYBE_UNNAMED):
        park_at_ms = _started_at_ms(events, told) + told.park_after_ms
        yield f"It is due since {_overdue(head, told)}: each round tries the ledger again."
        yield f"If no round reaches the ledger, the transaction is parked at {at(park_at_ms)}."
    elif due is Due.LOOK_UP:
        yield f"It is due since {_overdue(head, told)}: the next round looks it up."
    else:
        yield from _to_ask(head, events, told, due_before)


def _last_answer(events: Sequence[EventRow]) -> Iterator[str]:
    """Quote why the last producer that was asked could not tell the outcome."""
    answers = [event for event in events if event.event == "answered"]
    if answers and ": " in answers[-1].detail:
        check, _, remark = answers[-1].detail.partition(": ")
        when = at(answers[-1].at_ms)
        yield f"{answers[-1].by} could not tell at {check}, at {when}: {escaped(remark)}"


def _waiting(head: LifeLineAnswer, told: StatusAnswer) -> Iterator[str]:
    assert head.next_check_at_ms is not None
    when = f"{duration(head.next_check_at_ms - told.now_ms)}, at {at(head.next_check_at_ms)}"
    if head.ledger:
        yield f"It is looked up in {when}."
    elif not head.checks_sent:
        yield f"Its first check is due in {when}: its sender has that long to decide it."
    elif head.checks_sent >= told.checks_max:
        yield f"All checks were sent. Without an answer, the transaction is parked in {when}."
    else:
        wait = duration(check_wait_ms(head.checks_sent, CheckPolicy.told_by(told)))
        yield f"Its next check is due in {when}: after check {head.checks_sent} it waits {wait}."
        if told.check_backoff > 1:
            longest = duration(told.check_interval_max_ms)
            yield f"Each wait is {told.check_backoff:g} times the one before, at most {longest}."


def _to_ask(
    head: LifeLineAnswer, events: Sequence[EventRow], told: StatusAnswer, due_before: int
) -> Iterator[str]:
    yield f"Its next check is due since {_overdue(head, told)}."
    if not head.producers_online:
        park_at_ms = _started_at_ms(events, told) + told.park_after_ms
        yield (
            "The check waits until a producer of that group connects, and does not count before. "
            f"If none connects, the transaction is parked at {at(park_at_ms)}."
        )
    elif due_before:
        yield (
            f"{due_before} others of its group have been due for longer and go first: at most "
            "transaction.check_budget_per_group (1000) checks of one group wait for an answer."
        )
    else:
        yield "In the next round, the broker asks a producer."


def _overdue(head: LifeLineAnswer, told: StatusAnswer) -> str:
    assert head.next_check_at_ms is not None
    return f"{at(head.next_check_at_ms)}, for {duration(told.now_ms - head.next_check_at_ms)}"


def _due(head: LifeLineAnswer, events: Sequence[EventRow], told: StatusAnswer) -> Due:
    """Apply the rules of the core, so that they are not repeated here."""
    next_at_ms = told.now_ms if head.next_check_at_ms is None else head.next_check_at_ms
    half = HalfFacts(
        state=int(State.PREPARED),
        age_ms=told.now_ms - _started_at_ms(events, told),
        wait_ms=next_at_ms - told.now_ms,
        checks_sent=head.checks_sent,
        has_ledger=int(bool(head.ledger)),
    )
    return due(half, CheckPolicy.told_by(told))


def _park_why(head: LifeLineAnswer, told: StatusAnswer) -> str:
    if head.checks_sent >= told.checks_max:
        return f"asked {head.checks_sent} times"
    return f"older than {duration(told.park_after_ms)}"


def _started_at_ms(events: Sequence[EventRow], told: StatusAnswer) -> int:
    """Return when the transaction was held or last resumed: its age counts from there."""
    began = [event.at_ms for event in events if event.event in {"held", "resumed"}]
    return max(began, default=told.now_ms)
