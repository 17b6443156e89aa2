"""A ledger's answer gives a verdict, or a reason to wait."""

from __future__ import annotations

import pytest

from escrowmq.model.ledger_outcome import MAYBE_SWEPT, LedgerOutcome
from escrowmq.transaction.commands import VerdictKind
from escrowmq.transaction.ledger_verdicts import LedgerVerdict, verdict_of
from escrowmq.transaction.rules import Due

COMMITTED, ROLLED_BACK, UNKNOWN = LedgerOutcome


@pytest.mark.parametrize(
    ("outcome", "reason", "due", "expected"),
    [
        (COMMITTED, "", Due.WAIT, LedgerVerdict(VerdictKind.COMMIT)),
        (ROLLED_BACK, "", Due.WAIT, LedgerVerdict(VerdictKind.ROLLBACK)),
        # The ledger decides, however old the transaction is.
        (COMMITTED, "", Due.PARK, LedgerVerdict(VerdictKind.COMMIT)),
        (ROLLED_BACK, "", Due.PARK, LedgerVerdict(VerdictKind.ROLLBACK)),
        (UNKNOWN, "absent", Due.WAIT, LedgerVerdict(None, "absent")),
        (UNKNOWN, "absent", Due.PARK, LedgerVerdict(VerdictKind.PARK, "past_retention")),
        # A later look-up cannot tell more, so it parks at once and with its own reason.
        (UNKNOWN, MAYBE_SWEPT, Due.WAIT, LedgerVerdict(VerdictKind.PARK, MAYBE_SWEPT)),
        (UNKNOWN, MAYBE_SWEPT, Due.PARK, LedgerVerdict(VerdictKind.PARK, MAYBE_SWEPT)),
    ],
)
def test_an_answer_gives_a_verdict_or_a_reason(
    outcome: LedgerOutcome, reason: str, due: Due, expected: LedgerVerdict
) -> None:
    found = verdict_of(outcome, reason, due_unanswered=due.value, park_reason="past_retention")
    assert found == expected
