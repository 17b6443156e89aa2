"""Many verdicts at once end as they would one by one, or are left to be obeyed one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    CheckSent,
    Decision,
    Ended,
    Obeyed,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.records import DecidedMany, Span, unpack_rows
from escrowmq.transaction.states import State

HOUR_MS = 3_600_000
COMMIT, ROLLBACK = VerdictKind.COMMIT, VerdictKind.ROLLBACK
LEFT, COMMITTED, ROLLED_BACK, STALE = Ended


def verdicts(engine: MemoryEngine, *said: tuple[int, VerdictKind]) -> Verdicts:
    """Verdicts of the pipeline on the current version of these transactions."""
    halves = [engine.table.get(row) for row, _ in said]
    return Verdicts(
        half_offsets=[row for row, _ in said],
        commits=[kind is COMMIT for _, kind in said],
        states=[0 if half is None else half.state for half in halves],
        checks_sent=[0 if half is None else half.checks_sent for half in halves],
        by="round 7",
    )


def obeyed(decision: Decision) -> Obeyed:
    assert decision.refused is None
    assert isinstance(decision.reply, Obeyed)
    return decision.reply


def ends(decision: Decision) -> list[Ended]:
    return list(map(Ended, obeyed(decision).ends))


def test_one_record_decides_all_of_them_each_for_itself() -> None:
    engine = MemoryEngine()
    for number in range(6):
        engine.prepare(f"t{number}", message(b"%d" % number, queue_id=number % 2))
    kinds = (COMMIT, COMMIT, ROLLBACK, COMMIT, ROLLBACK, COMMIT)
    decision = engine.submit(verdicts(engine, *enumerate(kinds)))
    assert ends(decision) == [ROLLED_BACK if kind is ROLLBACK else COMMITTED for kind in kinds]
    (record,) = decision.records
    assert isinstance(record, DecidedMany)
    assert list(unpack_rows(record.committed)) == [0, 1, 3, 5]
    assert list(unpack_rows(record.rolled_back)) == [2, 4]
    assert record.given == [Span(0, 0, 1), Span(1, 0, 3)]
    assert [one.body for one in engine.pull("orders", 1)] == [b"1", b"3", b"5"]
    assert engine.table.decided_by(engine.core.row(4)) == ("round 7", engine.clock.now_ms())


def test_a_verdict_on_a_changed_transaction_is_stale_and_changes_nothing() -> None:
    engine = MemoryEngine()
    for name in "abc":
        engine.prepare(name)
    seen = verdicts(engine, (0, COMMIT), (1, COMMIT), (2, ROLLBACK))
    engine.submit(CheckSent(half_offset=0, client="p"))
    engine.rollback(1)
    engine.rollback(2)
    decision = engine.submit(seen)
    assert ends(decision) == [STALE, STALE, STALE]
    assert decision.records == ()
    # Only one of them contradicts a decision.
    assert obeyed(decision).contradicted == [1]


def test_a_commit_may_contradict_and_so_may_a_rollback() -> None:
    engine = MemoryEngine()
    engine.prepare("a")
    seen = verdicts(engine, (0, ROLLBACK))
    engine.commit(0)
    assert obeyed(engine.submit(seen)).contradicted == [0]


def test_a_parked_transaction_is_decided_and_one_that_was_resumed_is_forgotten() -> None:
    engine = MemoryEngine()
    for name in "ab":
        engine.prepare(name)
        engine.park(engine.table.end - 1)
    engine.resume(1)
    decision = engine.submit(verdicts(engine, (0, COMMIT), (1, ROLLBACK)))
    assert ends(decision) == [COMMITTED, ROLLED_BACK]
    assert engine.core.resumed_at_ms == {}


def test_a_transaction_named_twice_is_decided_once() -> None:
    engine = MemoryEngine()
    for name in "ab":
        engine.prepare(name)
    said = [(1, COMMIT), (0, COMMIT), (1, ROLLBACK)]
    assert ends(engine.submit(verdicts(engine, *said))) == [COMMITTED, COMMITTED, LEFT]
    assert [engine.state(row) for row in (0, 1)] == [State.COMMITTED] * 2


def test_whatever_is_not_simple_is_left() -> None:
    engine = MemoryEngine()
    old = engine.prepare("old").half_offset
    engine.clock.advance(ms=HOUR_MS)
    engine.prepare("two messages", message(), message())
    first = engine.prepare("two requests", number=0).half_offset
    second = engine.prepare("two requests", number=1).half_offset
    delayed = engine.prepare("delayed", message(deliver_after_ms=5)).half_offset
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + 5))
    plain = engine.table.end - 1
    done = engine.prepare("done").half_offset
    engine.commit(done)
    rows = (old, 1, 2, first, second, delayed, plain, done, 99)
    decision = engine.submit(verdicts(engine, *((row, COMMIT) for row in rows)))
    assert ends(decision) == [LEFT] * len(rows)
    assert decision.records == ()
    # A rollback never becomes visible, so its bytes need not be carried forward.
    assert ends(engine.submit(verdicts(engine, (old, ROLLBACK)))) == [ROLLED_BACK]


def test_nothing_is_said_of_nothing() -> None:
    decision = MemoryEngine().submit(
        Verdicts(half_offsets=[], commits=[], states=[], checks_sent=[])
    )
    assert (ends(decision), decision.records) == ([], ())


def test_a_carried_transaction_is_decided_and_forgotten() -> None:
    engine = MemoryEngine(copy_after_ms=0)
    engine.prepare("a")
    engine.commit(engine.prepare("b").half_offset)
    assert engine.core.carried_at_ms == {}
    engine = MemoryEngine()
    engine.prepare("a")
    engine.clock.advance(ms=HOUR_MS)
    engine.prepare("b", number=0)
    engine.prepare("b", number=1)
    engine.core.carried_at_ms[0] = 5
    assert ends(engine.submit(verdicts(engine, (0, ROLLBACK)))) == [ROLLED_BACK]
    assert engine.core.carried_at_ms == {}
    assert engine.core.heads == {2: 1}


@pytest.mark.parametrize("is_many", [False, True])
def test_a_restarted_engine_knows_the_same(*, is_many: bool) -> None:
    engine = MemoryEngine()
    for number in range(4):
        engine.prepare(f"t{number}", message(b"%d" % number))
    said = [(0, COMMIT), (1, ROLLBACK), (2, COMMIT)]
    obey(engine, said, is_many=is_many)
    again = engine.restart()
    assert again.queues == engine.queues
    assert again.table.rows == engine.table.rows


def obey(
    engine: MemoryEngine, said: list[tuple[int, VerdictKind]], *, is_many: bool
) -> list[State]:
    many = verdicts(engine, *said)
    ended = [LEFT] * len(said)
    if is_many:
        ended = ends(engine.submit(many))
    for at, (row, kind) in enumerate(said):
        if ended[at] is LEFT:
            state, checks_sent = State(many.states[at]), int(many.checks_sent[at])
            engine.submit(Verdict(half_offset=row, kind=kind, state=state, checks_sent=checks_sent))
    return [half.state for half in engine.table.rows.values()]


SAID = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([COMMIT, ROLLBACK])), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(SAID, SAID)
def test_together_they_come_to_the_same_as_one_by_one(
    first: list[tuple[int, VerdictKind]], second: list[tuple[int, VerdictKind]]
) -> None:
    states = []
    for is_many in (False, True):
        engine = MemoryEngine()
        engine.prepare("many", message(), message(queue_id=1))
        engine.prepare("parts", number=0)
        engine.prepare("parts", number=1)
        engine.prepare("delayed", message(deliver_after_ms=5))
        for number in range(4):
            engine.prepare(f"t{number}", message(queue_id=number % 2))
        engine.park(6)
        states.append([obey(engine, said, is_many=is_many) for said in (first, second)])
    assert states[0] == states[1]


def test_a_part_of_a_sink_is_left_so_that_its_batch_is_remembered() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"))
    engine.prepare("part", message(b"b"), group="%SINK%app@home")
    decision = engine.submit(verdicts(engine, (0, COMMIT), (1, COMMIT)))
    assert ends(decision) == [COMMITTED, LEFT]
