"""Settling one transaction by hand, through its ledger and its fence.

A person's word counts for as much as a check's: what the ledger says is looked up first, a rollback
of what is absent is made certain by a fence, and a decision against the ledger is refused unless it
is forced, which goes on record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from escrowmq.client.ledger_checks import ABSENT, Answer, Outcome, Question, deadline_at_ms
from escrowmq.client.outgoing import Resolution
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_hand_headers import SettleAnswer, SettleHeader
from escrowmq.protocol.own_headers import (
    LifeLineAnswer,
    ListTransactionsHeader,
    StatusAnswer,
    TransactionHeader,
)
from escrowmq.protocol.sights import sight_of

if TYPE_CHECKING:
    from escrowmq.client.ledger_table import SqlLedger
    from escrowmq.client.own_calls import OwnCalls
    from escrowmq.model.lineage import Sight
    from escrowmq.protocol.own_rows import TransactionRow

FORCED = "(forced; "
"""Before what the ledger said, at the end of the reason of a decision that was forced."""

#: In these a transaction waits for a decision.
_OPEN = ("prepared", "parked")
_AGREES = {Resolution.COMMIT: Outcome.COMMITTED, Resolution.ROLLBACK: Outcome.ROLLED_BACK}
_NOT_GIVEN = Answer(Outcome.UNKNOWN, "not_given")
_NO_LEDGER = Answer(Outcome.UNKNOWN, "no_ledger")


def settle_by_hand(
    calls: OwnCalls,
    ledgers: Mapping[str, SqlLedger],
    *,
    half_offset: int = -1,
    transaction_id: str = "",
    resolution: Resolution,
    reason: str,
    by: str,
    force: bool = False,
) -> SettleAnswer:
    """Commit or roll back a transaction, which is named by a half message of it or by its id.

    With both, the half message counts, and must be one of that transaction.
    ``ledgers`` are the databases that can be read, by their UUIDs.  With ``force`` a rollback is
    fenced before its deadline too, and whatever the ledger says is overridden.

    Raises:
        RequestRefused: ``against_ledger``, with what the ledger says, or ``other_history`` if the
            half message is another transaction's; nothing was decided.
    """
    # The broker cuts a long reason at its end, where it says that it was forced.
    reason = reason[: SHOWN_CHARS_MAX // 2]
    # Seen first: whatever is undecided afterwards was undecided then.
    status = calls.call(OwnCode.STATUS).header
    assert isinstance(status, StatusAnswer)
    named = TransactionHeader(
        half_offset=half_offset,
        transaction_id=transaction_id if half_offset < 0 else "",
        limit=1,
        leaves_marks=True,
    )
    told = calls.call(OwnCode.LIFE_LINE, named).header
    assert isinstance(told, LifeLineAnswer)
    if transaction_id and told.transaction_id != transaction_id:
        raise RequestRefused(
            "other_history",
            "the broker was restored meanwhile: list the transactions again",
            half_offset=half_offset,
            transaction_id=told.transaction_id,
        )
    if told.ledger and told.state in _OPEN:
        ledger, sight = ledgers.get(told.ledger), sight_of(status)
        said = _look_up(calls, ledger, told, resolution, sight, force=force)
        if said.outcome is not _AGREES.get(resolution) and not force:
            raise RequestRefused(
                "against_ledger",
                "decide as the ledger does, or force it",
                transaction_id=told.transaction_id,
                ledger=told.ledger,
                says=said.reason or said.outcome.value,
            )
        if force:
            reason = f"{reason} {FORCED}the ledger said {said.reason or said.outcome.value})"
    elif force and told.state in _OPEN:
        reason = f"{reason} {FORCED}it has no ledger)"
    header = SettleHeader(
        half_offset=told.half_offset,
        resolution=resolution.value,
        reason=reason,
        by=by,
        epoch=status.epoch,
        log_end=status.log_end,
        is_forced=force,
    )
    answer = calls.call(OwnCode.SETTLE, header).header
    assert isinstance(answer, SettleAnswer)
    return answer


def what_the_ledger_says(
    ledgers: Mapping[str, SqlLedger], told: LifeLineAnswer
) -> tuple[Answer, frozenset[Resolution]]:
    """What is in a transaction's ledger, only read; and which decisions that allows.

    What is absent can be rolled back past its deadline, by a fence that is not made here.
    """
    if not told.ledger or told.state not in _OPEN:
        return _NO_LEDGER, frozenset(_AGREES)
    ledger = ledgers.get(told.ledger)
    if ledger is None:
        return _NOT_GIVEN, frozenset()
    question = Question(told.transaction_id, told.producer_group, 0)
    answers = ledger.look_up([question], ledger_uuid=told.ledger)
    said = answers[told.transaction_id]
    if said == ABSENT:
        return said, frozenset({Resolution.ROLLBACK})
    return said, frozenset(one for one, outcome in _AGREES.items() if outcome is said.outcome)


def foresee_many(
    ledgers: Mapping[str, SqlLedger],
    rows: Sequence[TransactionRow],
    resolution: Resolution,
    status: StatusAnswer,
    *,
    force: bool = False,
) -> dict[int, Answer]:
    """What the ledgers would say if these transactions were settled so; by half offset.

    Nothing is written.  The rows have their ids, and ``status`` was asked for before them.
    """
    sight, now_ms = sight_of(status), status.now_ms
    by_ledger: dict[str, list[Question]] = {}
    found: dict[int, Answer] = {}
    for row in rows:
        if not row.ledger:
            found[row.half_offset] = _NO_LEDGER
        elif row.ledger not in ledgers:
            found[row.half_offset] = _NOT_GIVEN
        else:
            deadline_ms = deadline_at_ms(row.stored_at_ms, row.allowed_ms)
            # As in settle_by_hand: force does not wait for the deadline.
            question = Question(
                row.transaction_id or "",
                row.producer_group,
                now_ms - 1 if force else deadline_ms,
                row.half_offset,
            )
            by_ledger.setdefault(row.ledger, []).append(question)
    for uuid, questions in by_ledger.items():
        if resolution is Resolution.ROLLBACK:
            answers = ledgers[uuid].foresee(questions, ledger_uuid=uuid, now_ms=now_ms, sight=sight)
        else:
            answers = ledgers[uuid].look_up(questions, ledger_uuid=uuid)
        found |= {one.half_offset: answers[one.transaction_id] for one in questions}
    return found


def is_agreed(said: Answer, resolution: Resolution, ledger: str) -> bool:
    """Whether a decision by hand goes through without force."""
    return not ledger or said.outcome is _AGREES.get(resolution)


def _look_up(
    calls: OwnCalls,
    ledger: SqlLedger | None,
    told: LifeLineAnswer,
    resolution: Resolution,
    sight: Sight | None,
    *,
    force: bool,
) -> Answer:
    """What the ledger says; for a rollback, what is absent past its deadline is fenced first."""
    if ledger is None:
        return _NOT_GIVEN
    listing = ListTransactionsHeader(
        start=told.half_offset, end=told.half_offset + 1, states=",".join(_OPEN)
    )
    listed = calls.call(OwnCode.LIST_TRANSACTIONS, listing)
    now_ms = listed.header.now_ms
    deadline_ms = now_ms
    for row in listed.rows:
        deadline_ms = deadline_at_ms(row.stored_at_ms, row.allowed_ms)
    if force:
        # Early is safe: whoever comes later with the row cannot commit.
        deadline_ms = now_ms - 1
    question = Question(told.transaction_id, told.producer_group, deadline_ms, told.half_offset)
    if resolution is Resolution.ROLLBACK:
        answers = ledger.settle([question], ledger_uuid=told.ledger, now_ms=now_ms, sight=sight)
    else:
        answers = ledger.look_up([question], ledger_uuid=told.ledger)
    return answers[told.transaction_id]
