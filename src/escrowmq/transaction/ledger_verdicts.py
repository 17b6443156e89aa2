"""The verdict that follows from a ledger's answer. The pipeline and the broker share this rule."""

from __future__ import annotations

from typing import NamedTuple

from escrowmq.model.ledger_outcome import MAYBE_SWEPT, LedgerOutcome
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.rules import Due

_DECIDED = {
    LedgerOutcome.COMMITTED: VerdictKind.COMMIT,
    LedgerOutcome.ROLLED_BACK: VerdictKind.ROLLBACK,
}


class LedgerVerdict(NamedTuple):
    """A verdict, or why there is none."""

    #: None means no verdict: the transaction waits for the next look-up.
    kind: VerdictKind | None
    #: Why the transaction is parked, or gets no verdict; empty for a commit and a rollback.
    reason: str = ""


def verdict_of(
    outcome: LedgerOutcome, reason: str, *, due_unanswered: str, park_reason: str | None
) -> LedgerVerdict:
    """Return the verdict on a transaction that was looked up.

    ``reason`` is the ledger's reason for UNKNOWN. ``due_unanswered`` is what the rules of
    ``DUES_UNANSWERED`` say, and ``park_reason`` why they park it.
    """
    decided = _DECIDED.get(outcome)
    if decided is not None:
        return LedgerVerdict(decided)
    if reason == MAYBE_SWEPT:
        # No later look-up can tell, so an operator decides.
        return LedgerVerdict(VerdictKind.PARK, MAYBE_SWEPT)
    if due_unanswered == Due.PARK.value:
        return LedgerVerdict(VerdictKind.PARK, park_reason or "")
    return LedgerVerdict(None, reason)
