"""Back-checks: counted when actually sent, stopped at the limit, restarted by an operator."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    CheckSent,
    Command,
    Decision,
    Park,
    Resume,
    Verdict,
    VerdictKind,
)
from escrowmq.transaction.decisions.checking import outcome_of
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER, Asked, Parked, Resumed
from escrowmq.transaction.states import State
from escrowmq.transaction.table import Half

DECIDED = [State.COMMITTED, State.ROLLED_BACK]


def half(engine: MemoryEngine, row: int = 0) -> Half:
    found = engine.core.table.get(row)
    assert found is not None
    return found


def engine_in(state: State, *, rows: int = 1) -> MemoryEngine:
    """An engine with one transaction, at half offset 0, in this state."""
    engine = MemoryEngine()
    engine.prepare("t", *[message()] * rows)
    match state:
        case State.COMMITTED:
            engine.commit(0)
        case State.ROLLED_BACK:
            engine.rollback(0)
        case State.PARKED:
            engine.park(0)
    return engine


def scheduled() -> MemoryEngine:
    """An engine whose row 0 is not a half message."""
    engine = MemoryEngine()
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + 1))
    return engine


def code(decision: Decision) -> str:
    assert decision.records == ()
    assert decision.refused is not None
    return decision.refused.code


COMMANDS: list[Command] = [
    CheckSent(half_offset=0, client="c"),
    Park(half_offset=0, reason="by_hand"),
    Resume(half_offset=0, by="operator"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("engine", [MemoryEngine(), scheduled()], ids=["nothing", "no half"])
def test_a_row_that_is_no_half_message_is_refused(engine: MemoryEngine, command: Command) -> None:
    assert code(engine.submit(command)) == "no_such_half_message"


# Asked.


def test_a_check_that_was_sent_is_counted_and_the_next_one_waits() -> None:
    engine = MemoryEngine(policy=CheckPolicy(check_backoff=2.0))
    engine.prepare("t", message(), message())
    for number, wait_ms in [(1, 30_000), (2, 60_000), (3, 120_000)]:
        engine.clock.advance(seconds=1)
        decision = engine.submit(CheckSent(half_offset=1, client="client-7"))
        next_at_ms = engine.clock.now_ms() + wait_ms
        assert decision == Decision(records=(Asked(0, number, next_at_ms, "client-7"),))
        assert (half(engine).checks_sent, half(engine).next_at_ms) == (number, next_at_ms)
        assert (half(engine, 1).checks_sent, half(engine, 1).next_at_ms) == (0, NEVER)


def test_no_more_checks_are_counted_than_the_policy_allows() -> None:
    engine = MemoryEngine(policy=CheckPolicy(checks_max=2))
    engine.prepare("t")
    engine.check_sent(0)
    engine.check_sent(0)
    assert code(engine.submit(CheckSent(half_offset=0, client="c"))) == "checks_exhausted"
    assert half(engine).checks_sent == 2
    assert engine.state(0) is State.PREPARED


@pytest.mark.parametrize("state", [*DECIDED, State.PARKED])
def test_a_check_that_was_overtaken_is_not_counted(state: State) -> None:
    engine = engine_in(state)
    assert engine.submit(CheckSent(half_offset=0, client="c")) == Decision()
    assert half(engine).checks_sent == 0


# Parked.


@pytest.mark.parametrize("row", [0, 1, 2])
def test_parking_stops_the_checks_of_the_whole_transaction(row: int) -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(), message(), number=0)
    engine.prepare("t", message(), number=1)
    engine.check_sent(0)

    decision = engine.submit(Park(half_offset=row, reason="exhausted"))

    assert decision == Decision(records=(Parked(0, "exhausted"),))
    assert {engine.state(r) for r in range(3)} == {State.PARKED}
    assert half(engine).next_at_ms == NEVER
    assert half(engine).checks_sent == 1
    assert engine.undecided() == []


@pytest.mark.parametrize("state", [*DECIDED, State.PARKED])
def test_only_an_undecided_transaction_can_be_parked(state: State) -> None:
    engine = engine_in(state)
    assert code(engine.submit(Park(half_offset=0, reason="x"))) == f"already_{state.label}"


def test_parked_is_not_a_decision() -> None:
    for resolution, state in [
        (Resolution.COMMIT, State.COMMITTED),
        (Resolution.ROLLBACK, State.ROLLED_BACK),
    ]:
        engine = engine_in(State.PARKED, rows=2)
        assert not engine.end(1, resolution).repeated
        assert {engine.state(row) for row in range(2)} == {state}


# Resumed.


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_resumed_transaction_is_checked_again_from_the_first_check(row: int) -> None:
    engine = MemoryEngine(policy=CheckPolicy(checks_max=1))
    engine.prepare("t", message(), message(), number=0)
    engine.prepare("t", message(), number=1)
    engine.check_sent(0)
    engine.park(0)
    engine.clock.advance(seconds=100)

    decision = engine.submit(Resume(half_offset=row, by="operator"))

    now_ms = engine.clock.now_ms()
    assert decision == Decision(records=(Resumed(0, now_ms, "operator"),))
    assert {engine.state(r) for r in range(3)} == {State.PREPARED}
    assert (half(engine).checks_sent, half(engine).next_at_ms) == (0, now_ms)
    engine.check_sent(0)
    assert half(engine).checks_sent == 1


def test_the_age_of_a_resumed_transaction_counts_from_the_resume() -> None:
    engine = engine_in(State.PARKED)
    engine.clock.advance(seconds=1_000)
    engine.resume(0)
    engine.clock.advance(seconds=5)
    assert [fact.age_ms for fact in engine.undecided()] == [5_000]
    engine.park(0)
    assert engine.core.resumed_at_ms == {}
    engine.resume(0)
    engine.commit(0)
    assert engine.core.resumed_at_ms == {}


@pytest.mark.parametrize("state", [*DECIDED, State.PREPARED])
def test_only_a_parked_transaction_can_be_resumed(state: State) -> None:
    engine = engine_in(state)
    with pytest.raises(RequestRefused) as caught:
        engine.resume(0)
    assert caught.value.code == "not_parked"
    assert caught.value.fields == {"half_offset": 0, "state": state.label}


# Verdicts.


def verdict(
    kind: VerdictKind, *, state: State = State.PREPARED, checks_sent: int = 0, half_offset: int = 0
) -> Verdict:
    return Verdict(
        half_offset=half_offset, kind=kind, state=state, checks_sent=checks_sent, reason="why"
    )


def test_the_verdict_ask_names_the_half_to_ask_about_and_counts_nothing() -> None:
    engine = engine_in(State.PREPARED)
    assert engine.submit(verdict(VerdictKind.ASK)) == Decision(back_checks=(0,))
    assert half(engine).checks_sent == 0


def test_no_producer_is_asked_after_the_last_check() -> None:
    engine = MemoryEngine(policy=CheckPolicy(checks_max=1))
    engine.prepare("t")
    engine.check_sent(0)
    assert code(engine.submit(verdict(VerdictKind.ASK, checks_sent=1))) == "checks_exhausted"


def test_the_verdict_park_parks_with_its_reason() -> None:
    engine = engine_in(State.PREPARED)
    assert engine.submit(verdict(VerdictKind.PARK)).records == (Parked(0, "why"),)
    assert engine.state(0) is State.PARKED


@pytest.mark.parametrize("kind", VerdictKind)
@pytest.mark.parametrize(
    ("state", "checks_sent", "half_offset"),
    [
        # Another check was sent, or the count was reset, since the pipeline looked.
        (State.PREPARED, 0, 0),
        (State.PREPARED, 2, 0),
        # It was parked, or decided.
        (State.PARKED, 1, 0),
        (State.COMMITTED, 1, 0),
        # There is no such row.
        (State.PREPARED, 1, 9),
    ],
)
def test_a_stale_verdict_is_dropped(
    kind: VerdictKind, state: State, checks_sent: int, half_offset: int
) -> None:
    engine = engine_in(State.PREPARED)
    engine.check_sent(0)
    stale = verdict(kind, state=state, checks_sent=checks_sent, half_offset=half_offset)
    assert engine.submit(stale) == Decision()
    assert engine.state(0) is State.PREPARED


@pytest.mark.parametrize("kind", [VerdictKind.COMMIT, VerdictKind.ROLLBACK])
def test_a_verdict_on_a_parked_transaction_decides_it(kind: VerdictKind) -> None:
    engine = engine_in(State.PARKED)
    assert engine.submit(verdict(kind, state=State.PARKED)).records
    assert engine.state(0) in DECIDED


@pytest.mark.parametrize("kind", VerdictKind)
def test_the_version_of_a_transaction_is_that_of_its_head(kind: VerdictKind) -> None:
    engine = engine_in(State.PREPARED, rows=2)
    engine.check_sent(0)
    assert engine.submit(verdict(kind, checks_sent=0, half_offset=1)) == Decision()
    decision = engine.submit(verdict(kind, checks_sent=1, half_offset=1))
    assert decision.back_checks == (0,) if kind is VerdictKind.ASK else decision.records


@pytest.mark.parametrize("kind", VerdictKind)
def test_a_scheduled_message_obeys_no_verdict(kind: VerdictKind) -> None:
    engine = scheduled()
    assert engine.submit(verdict(kind, state=State.COMMITTED)) == Decision()


def test_a_check_of_a_parked_or_decided_transaction_is_dropped() -> None:
    for state in (State.PARKED, *DECIDED):
        engine = engine_in(state)
        assert engine.submit(verdict(VerdictKind.ASK, state=state)) == Decision()


@pytest.mark.parametrize(
    ("kind", "state", "outcome"),
    [
        (VerdictKind.COMMIT, State.PREPARED, VerdictOutcome.COMMITTED),
        (VerdictKind.ROLLBACK, State.PREPARED, VerdictOutcome.ROLLED_BACK),
        (VerdictKind.ASK, State.PREPARED, VerdictOutcome.ASKED),
        (VerdictKind.PARK, State.PREPARED, VerdictOutcome.PARKED),
        # Already in that state.
        (VerdictKind.COMMIT, State.COMMITTED, VerdictOutcome.COMMITTED),
        (VerdictKind.COMMIT, State.ROLLED_BACK, VerdictOutcome.REFUSED),
        (VerdictKind.PARK, State.PARKED, VerdictOutcome.REFUSED),
        (VerdictKind.ASK, State.PARKED, VerdictOutcome.STALE),
    ],
)
def test_every_verdict_has_an_outcome(
    kind: VerdictKind, state: State, outcome: VerdictOutcome
) -> None:
    assert outcome_of(engine_in(state).submit(verdict(kind, state=state))) is outcome
