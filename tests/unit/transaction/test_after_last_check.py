"""After the last check: parked, or rolled back and kept; and a resume that a late verdict meets."""

from __future__ import annotations

import pytest

from escrowmq.model.sink_attempt import GROUP_PREFIX
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Prepare, Resume, Verdict, VerdictKind
from escrowmq.transaction.decisions.checking import outcome_of
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import Decided, Parked
from escrowmq.transaction.states import State

ROLLS_BACK = CheckPolicy(after_last_check="rollback")
LEDGER = "11111111-2222-3333-4444-555555555555"


def held(policy: CheckPolicy, *, group: str = "pay", ledger: str = "") -> MemoryEngine:
    engine = MemoryEngine(policy=policy)
    engine.submit(
        Prepare(group=group, transaction_id="t", messages=(message(), message()), ledger=ledger)
    )
    return engine


def parking(reason: str, *, state: State = State.PREPARED, checks_sent: int = 0) -> Verdict:
    return Verdict(
        half_offset=0,
        kind=VerdictKind.PARK,
        state=state,
        checks_sent=checks_sent,
        reason=reason,
        by="broker",
    )


@pytest.mark.parametrize("reason", ["exhausted", "past_retention"])
def test_one_frame_keeps_the_messages_and_rolls_back(reason: str) -> None:
    engine = held(ROLLS_BACK)
    decision = engine.submit(parking(reason))
    parked, decided = decision.records
    assert parked == Parked(0, reason)
    assert isinstance(decided, Decided)
    assert (decided.state, decided.by, decided.ranges) == (State.ROLLED_BACK, "broker", [(0, 2)])
    assert outcome_of(decision) is VerdictOutcome.ROLLED_BACK
    assert engine.core.row(0).state is State.ROLLED_BACK


@pytest.mark.parametrize(
    ("policy", "group", "ledger", "reason"),
    [
        (CheckPolicy(), "pay", "", "exhausted"),
        # Only the ledger may roll it back.
        (ROLLS_BACK, "pay", LEDGER, "past_retention"),
        # Evidence decides attempts of a Spark sink.
        (ROLLS_BACK, f"{GROUP_PREFIX}app", "", "past_retention"),
        # The ledger's row may have been deleted: a person decides.
        (ROLLS_BACK, "pay", "", "maybe_swept"),
    ],
)
def test_otherwise_it_is_only_parked(
    policy: CheckPolicy, group: str, ledger: str, reason: str
) -> None:
    decision = held(policy, group=group, ledger=ledger).submit(parking(reason))
    assert decision.records == (Parked(0, reason),)
    assert outcome_of(decision) is VerdictOutcome.PARKED


def test_a_parked_transaction_is_not_rolled_back() -> None:
    engine = held(ROLLS_BACK)
    engine.park(0)
    decision = engine.submit(parking("exhausted", state=State.PARKED))
    assert outcome_of(decision) is VerdictOutcome.REFUSED


def test_a_verdict_from_before_a_resume_parks_nothing() -> None:
    engine = held(CheckPolicy())
    engine.clock.advance(ms=engine.core.policy.park_after_ms)
    late = parking("past_retention")
    engine.submit(late)
    engine.submit(Resume(half_offset=0, by="operator"))
    assert outcome_of(engine.submit(late)) is VerdictOutcome.STALE
    engine.clock.advance(ms=engine.core.policy.park_after_ms)
    assert outcome_of(engine.submit(late)) is VerdictOutcome.PARKED
