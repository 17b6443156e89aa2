"""The time rules as a loop: who is asked when, what counts, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.testing import AnsweringEngine, MemoryEngine, Settler, message
from escrowmq.testing.settler import CheckableTransaction, Round
from escrowmq.transaction.commands import Command, Decision, Verdict
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import Answered, Parked
from escrowmq.transaction.states import State

COMMIT, ROLLBACK, UNKNOWN = Resolution
POLICY = CheckPolicy(checks_max=3, park_after_ms=1_000_000)


class Producers:
    """Producers that give the answer a test sets; none is online at first."""

    def __init__(self, answer: Resolution | None = None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, half: CheckableTransaction) -> Resolution | None:
        if self.answer is not None:
            self.asked.append(half.transaction_id)
        return self.answer


def engine_with(*ids: str, ledger: str = "") -> MemoryEngine:
    engine = MemoryEngine(policy=POLICY)
    for transaction_id in ids:
        engine.prepare(transaction_id, message(transaction_id.encode()), ledger=ledger)
    return engine


def checks_sent(engine: MemoryEngine, head: int = 0) -> int:
    return engine.core.row(head).checks_sent


def test_no_producer_is_asked_before_its_time_is_over() -> None:
    engine, producers = engine_with("t"), Producers(COMMIT)
    settler = Settler(AnsweringEngine(engine, producers), POLICY)
    engine.clock.advance(ms=5_999)
    assert settler.run_once() == Round(waiting=[0])
    engine.clock.advance(ms=1)
    assert settler.run_once() == Round(asked=[0])
    assert producers.asked == ["t"]
    assert [m.body for m in engine.pull("orders")] == [b"t"]


def test_a_rollback_is_obeyed() -> None:
    engine = engine_with("t")
    engine.clock.advance(seconds=6)
    assert Settler(AnsweringEngine(engine, Producers(ROLLBACK)), POLICY).run_once() == Round(
        asked=[0]
    )
    assert engine.state(0) is State.ROLLED_BACK


def test_there_is_one_check_for_a_transaction_of_many_messages() -> None:
    engine, producers = MemoryEngine(policy=POLICY), Producers(COMMIT)
    engine.prepare("t", message(), message(), number=0)
    engine.prepare("t", message(), number=1)
    engine.clock.advance(seconds=6)
    Settler(AnsweringEngine(engine, producers), POLICY).run_once()
    assert producers.asked == ["t"]
    assert len(engine.pull("orders")) == 3


def test_no_producer_online_is_not_an_attempt() -> None:
    engine, producers = engine_with("t"), Producers()
    settler = Settler(AnsweringEngine(engine, producers), POLICY)
    engine.clock.advance(seconds=6)
    for _ in range(10):
        assert settler.run_once() == Round(no_producer=[0])
        engine.clock.advance(seconds=30)
    assert checks_sent(engine) == 0
    producers.answer = COMMIT
    assert settler.run_once() == Round(asked=[0])
    assert engine.state(0) is State.COMMITTED


def test_unknown_is_counted_recorded_and_asked_again_later() -> None:
    engine = engine_with("t")
    settler = Settler(AnsweringEngine(engine, Producers(UNKNOWN), client="client-7"), POLICY)
    engine.clock.advance(seconds=6)
    assert settler.run_once() == Round(asked=[0])
    assert engine.frames[-1].records == [Answered(0, 1, "client-7")]
    engine.clock.advance(ms=29_999)
    assert settler.run_once() == Round(waiting=[0])
    engine.clock.advance(ms=1)
    assert settler.run_once() == Round(asked=[0])
    assert checks_sent(engine) == 2


def test_after_the_last_check_had_its_time_the_transaction_is_parked() -> None:
    engine = engine_with("t")
    settler = Settler(AnsweringEngine(engine, Producers(UNKNOWN)), POLICY)
    engine.clock.advance(seconds=6)
    for _ in range(3):
        assert settler.run_once().asked == [0]
        engine.clock.advance(seconds=30)
    assert settler.run_once() == Round(parked=[0])
    assert engine.frames[-1].records == [Parked(0, "exhausted")]
    assert settler.run_once() == Round()


def test_a_resumed_transaction_is_asked_about_at_once_and_all_over_again() -> None:
    engine, producers = engine_with("t"), Producers(UNKNOWN)
    settler = Settler(AnsweringEngine(engine, producers), POLICY)
    engine.clock.advance(ms=POLICY.park_after_ms)
    assert settler.run_once() == Round(parked=[0])
    engine.resume(0)
    assert settler.run_once() == Round(asked=[0])
    assert checks_sent(engine) == 1


def test_an_absent_producer_cannot_hold_a_transaction_open_for_ever() -> None:
    engine = engine_with("t")
    settler = Settler(AnsweringEngine(engine, Producers()), POLICY)
    engine.clock.advance(ms=POLICY.park_after_ms - 1)
    assert settler.run_once() == Round(no_producer=[0])
    engine.clock.advance(ms=1)
    assert settler.run_once() == Round(parked=[0])
    assert engine.frames[-1].records == [Parked(0, "past_retention")]


@pytest.mark.parametrize(
    ("outcome", "state"), [(COMMIT, State.COMMITTED), (ROLLBACK, State.ROLLED_BACK)]
)
def test_a_ledger_settles_with_no_producer_online(outcome: Resolution, state: State) -> None:
    engine = engine_with("t", ledger="uuid")
    seen: list[str] = []

    def look_up(half: CheckableTransaction) -> Resolution:
        seen.append(half.ledger)
        return outcome

    settler = Settler(AnsweringEngine(engine, Producers()), POLICY, look_up)
    assert settler.run_once() == Round(waiting=[0])
    engine.clock.advance(seconds=6)
    done = settler.run_once()
    assert done.committed + done.rolled_back == [0]
    assert engine.state(0) is state
    assert seen == ["uuid"]
    assert engine.end(0, outcome).by == "settle"


@pytest.mark.parametrize("outcome", [UNKNOWN, None])
def test_a_ledger_without_an_outcome_is_looked_into_until_the_transaction_is_parked(
    outcome: Resolution | None,
) -> None:
    engine = engine_with("t", ledger="uuid")
    producers = Producers(COMMIT)
    settler = Settler(AnsweringEngine(engine, producers), POLICY, lambda _half: outcome)
    engine.clock.advance(ms=POLICY.park_after_ms - 1)
    assert settler.run_once() == Round(waiting=[0])
    engine.clock.advance(ms=1)
    assert settler.run_once() == Round(parked=[0])
    assert producers.asked == []


def test_a_ledger_is_looked_into_once_more_before_parking() -> None:
    engine = engine_with("t", ledger="uuid")
    engine.clock.advance(ms=10 * POLICY.park_after_ms)
    settler = Settler(AnsweringEngine(engine, Producers()), POLICY, lambda _half: COMMIT)
    assert settler.run_once() == Round(committed=[0])


def test_without_a_way_to_look_a_ledgers_transaction_is_asked_about() -> None:
    engine = engine_with("t", ledger="uuid")
    engine.clock.advance(seconds=6)
    # A live producer has access to its ledger.
    assert Settler(AnsweringEngine(engine, Producers(COMMIT)), POLICY).run_once() == Round(
        asked=[0]
    )


def test_decided_parked_and_scheduled_rows_need_no_work() -> None:
    engine = engine_with("committed", "rolled back", "parked", "open")
    engine.commit(0)
    engine.rollback(1)
    engine.park(2)
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + 1))
    engine.clock.advance(seconds=6)
    producers = Producers(COMMIT)
    Settler(AnsweringEngine(engine, producers), POLICY).run_once()
    assert producers.asked == ["open"]


class Overtaken:
    """A port with stale facts: the engine has changed since."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._facts = engine.undecided()

    def undecided(self) -> Sequence[CheckableTransaction]:
        return self._facts

    def submit(self, command: Command) -> Decision:
        return self._engine.submit(command)


def test_a_stale_round_is_harmless() -> None:
    engine = engine_with("asked", "decided", "parked")
    engine.prepare("in ledger", ledger="uuid")
    engine.prepare("past", check_after_ms=0)
    engine.clock.advance(ms=POLICY.park_after_ms)
    facts = Overtaken(engine)
    engine.check_sent(0)
    engine.commit(1)
    engine.park(2)
    engine.rollback(3)
    engine.rollback(4)
    producers = Producers(COMMIT)
    port = AnsweringEngine(facts, producers)
    # One policy asks about them, the other parks them.
    for policy in (CheckPolicy(), POLICY):
        settler = Settler(port, policy, lambda _half: COMMIT)
        # In the order in which they became due.
        assert settler.run_once() == Round(stale=[4, 0, 1, 2, 3])
    assert producers.asked == []
    assert [engine.state(row) for row in range(5)] == [
        State.PREPARED,
        State.COMMITTED,
        State.PARKED,
        State.ROLLED_BACK,
        State.ROLLED_BACK,
    ]


def test_an_answer_that_comes_after_the_opposite_decision_changes_nothing() -> None:
    engine = engine_with("t")
    engine.clock.advance(seconds=6)

    def slow(_half: CheckableTransaction) -> Resolution:
        engine.rollback(0)
        return COMMIT

    assert Settler(AnsweringEngine(engine, slow), POLICY).run_once() == Round(asked=[0])
    assert engine.state(0) is State.ROLLED_BACK


class Broker:
    """A port that ends every verdict with the outcome a test sets."""

    def __init__(self, engine: MemoryEngine, outcome: VerdictOutcome) -> None:
        self._engine = engine
        self._outcome = outcome

    def undecided(self) -> Sequence[CheckableTransaction]:
        return self._engine.undecided()

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        return [self._outcome for _ in verdicts]


@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_a_round_tells_how_each_verdict_ended(outcome: VerdictOutcome) -> None:
    engine = engine_with("a", "b")
    engine.clock.advance(seconds=6)
    engine.prepare("young")
    done = Settler(Broker(engine, outcome), POLICY).run_once()
    assert getattr(done, outcome.value) == [0, 1]
    assert done.waiting == [2]
