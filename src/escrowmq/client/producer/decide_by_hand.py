"""Deciding one transaction by hand, through its ledger and its fence.

An operator's decision follows the same rules as a back-check. The ledger is read first, and a
fence makes the rollback of an absent transaction certain. A decision against the ledger is refused
unless it is forced, and the broker records that it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from escrowmq.client.ledger.checks import ABSENT, LedgerAnswer, Question, deadline_at_ms
from escrowmq.model.errors import RequestRefused
from escrowmq.model.ledger_outcome import LedgerOutcome
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.limits import SHOWN_CHARS_MAX
from escrowmq.protocol.native.headers import (
    LifeLineAnswer,
    ListTransactionsHeader,
    TransactionHeader,
)
from escrowmq.protocol.native.operator_headers import DecideByHandAnswer, DecideByHandHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.sights import sight_of
from escrowmq.protocol.native.status_answer import StatusAnswer

if TYPE_CHECKING:
    from escrowmq.client.ledger.table import SqlLedger
    from escrowmq.client.network.native_calls import NativeCalls
    from escrowmq.model.lineage import Sight
    from escrowmq.protocol.native.rows import TransactionRow

FORCED = "(forced; "
"""Precedes the ledger's answer at the end of the reason of a forced decision."""

#: States in which a transaction waits for a decision.
_OPEN = ("prepared", "parked")
_AGREES = {
    Resolution.COMMIT: LedgerOutcome.COMMITTED,
    Resolution.ROLLBACK: LedgerOutcome.ROLLED_BACK,
}
_NOT_GIVEN = LedgerAnswer(LedgerOutcome.UNKNOWN, "not_given")
_NO_LEDGER = LedgerAnswer(LedgerOutcome.UNKNOWN, "no_ledger")


def decide_by_hand(
    calls: NativeCalls,
    ledgers: Mapping[str, SqlLedger],
    *,
    half_offset: int = -1,
    transaction_id: str = "",
    resolution: Resolution,
    reason: str,
    by: str,
    force: bool = False,
) -> DecideByHandAnswer:
    """Commit or roll back a transaction, given by one of its half messages or by its id.

    If both are given, the half message counts, and must belong to that transaction.
    ``ledgers`` are the readable ledgers, by their UUIDs. With ``force``, a rollback is fenced even
    before its deadline, and any answer of the ledger is overridden.

    Raises:
        RequestRefused: ``against_ledger``, with the ledger's answer, or ``other_history`` if the
            half message belongs to another transaction. Nothing was decided.
    """
    # Shorten the reason: the broker truncates a long one, and the note about force is at its end.
    reason = reason[: SHOWN_CHARS_MAX // 2]
    # Read the status first: a transaction that is undecided afterwards was undecided then.
    status = calls.call(NativeCode.STATUS).header
    assert isinstance(status, StatusAnswer)
    told = _found(calls, half_offset, transaction_id)
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
    header = DecideByHandHeader(
        half_offset=told.half_offset,
        resolution=resolution.value,
        reason=reason,
        by=by,
        epoch=status.epoch,
        log_end=status.log_end,
        is_forced=force,
    )
    answer = calls.call(NativeCode.DECIDE_BY_HAND, header).header
    assert isinstance(answer, DecideByHandAnswer)
    return answer


def _found(calls: NativeCalls, half_offset: int, transaction_id: str) -> LifeLineAnswer:
    """Return what the broker says of a transaction; refuse if it has not the given id."""
    named = TransactionHeader(
        half_offset=half_offset,
        transaction_id=transaction_id if half_offset < 0 else "",
        limit=1,
        leaves_marks=True,
    )
    told = calls.call(NativeCode.LIFE_LINE, named).header
    assert isinstance(told, LifeLineAnswer)
    if transaction_id and told.transaction_id != transaction_id:
        raise RequestRefused(
            "other_history",
            "the broker was restored in the meantime: list the transactions again",
            half_offset=half_offset,
            transaction_id=told.transaction_id,
        )
    return told


def what_the_ledger_says(
    ledgers: Mapping[str, SqlLedger], told: LifeLineAnswer
) -> tuple[LedgerAnswer, frozenset[Resolution]]:
    """Read a transaction's ledger; return its answer and the decisions that it allows.

    An absent row allows a rollback, by a fence. Neither the deadline nor sweeps are checked here,
    and no fence is written.
    """
    if not told.ledger or told.state not in _OPEN:
        return _NO_LEDGER, frozenset(_AGREES)
    ledger = ledgers.get(told.ledger)
    if ledger is None:
        return _NOT_GIVEN, frozenset()
    question = Question(told.transaction_id, told.producer_group, 0)
    said = ledger.look_up([question], ledger_uuid=told.ledger)[told.transaction_id]
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
) -> dict[int, LedgerAnswer]:
    """Predict the ledgers' answers to these decisions, by half offset.

    No fence is written, so a lock may still change an answer. The rows must have their ids, and
    ``status`` must have been read before the rows.
    """
    sight, now_ms = sight_of(status), status.now_ms
    by_ledger: dict[str, list[Question]] = {}
    found: dict[int, LedgerAnswer] = {}
    for row in rows:
        if not row.ledger:
            found[row.half_offset] = _NO_LEDGER
        elif row.ledger not in ledgers:
            found[row.half_offset] = _NOT_GIVEN
        else:
            deadline_ms = deadline_at_ms(row.stored_at_ms, row.allowed_ms)
            # As in decide_by_hand: force does not wait for the deadline.
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


def is_agreed(said: LedgerAnswer, resolution: Resolution, ledger: str) -> bool:
    """Whether a decision by hand succeeds without force."""
    return not ledger or said.outcome is _AGREES.get(resolution)


def _look_up(
    calls: NativeCalls,
    ledger: SqlLedger | None,
    told: LifeLineAnswer,
    resolution: Resolution,
    sight: Sight | None,
    *,
    force: bool,
) -> LedgerAnswer:
    """Return the ledger's answer; for a rollback, first fence what is absent past its deadline."""
    if ledger is None:
        return _NOT_GIVEN
    listing = ListTransactionsHeader(
        start=told.half_offset, end=told.half_offset + 1, states=",".join(_OPEN)
    )
    listed = calls.call(NativeCode.LIST_TRANSACTIONS, listing)
    now_ms = listed.header.now_ms
    deadline_ms = now_ms
    for row in listed.rows:
        deadline_ms = deadline_at_ms(row.stored_at_ms, row.allowed_ms)
    if force:
        # An early fence is safe: a producer that writes the row later cannot commit.
        deadline_ms = now_ms - 1
    question = Question(told.transaction_id, told.producer_group, deadline_ms, told.half_offset)
    if resolution is Resolution.ROLLBACK:
        answers = ledger.resolve([question], ledger_uuid=told.ledger, now_ms=now_ms, sight=sight)
    else:
        answers = ledger.look_up([question], ledger_uuid=told.ledger)
    return answers[told.transaction_id]
