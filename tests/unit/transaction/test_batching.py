"""Spark batches: all attempts at once or none, and every batch once."""

from __future__ import annotations

import pytest

from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import AttemptClaim, BatchReply, DecideBatch, Decision
from escrowmq.transaction.records import BatchDecided
from escrowmq.transaction.states import State

HOUR_MS = 3_600_000


def claim(transaction_id: str, *, last_number: int = 0, rows: int = 1) -> AttemptClaim:
    return AttemptClaim(transaction_id=transaction_id, last_number=last_number, rows=rows)


def decide(
    engine: MemoryEngine,
    *attempts: AttemptClaim,
    app_id: str = "app",
    query_id: str = "query",
    batch_id: int | str = 0,
    content: str = "",
    is_gapless: bool = False,
) -> Decision:
    return engine.submit(
        DecideBatch(
            app_id=app_id,
            query_id=query_id,
            batch_id=batch_id,
            attempts=attempts,
            by="driver",
            content=content,
            is_gapless=is_gapless,
        )
    )


def attempt(engine: MemoryEngine, transaction_id: str, *bodies: bytes) -> AttemptClaim:
    """Prepare an attempt, one request per body."""
    for number, body in enumerate(bodies):
        engine.prepare(transaction_id, message(body), number=number, bulk=True)
    return claim(transaction_id, last_number=len(bodies) - 1, rows=len(bodies))


def code(decision: Decision) -> str:
    assert decision.records == ()
    assert decision.refused is not None
    return decision.refused.code


def bodies(engine: MemoryEngine) -> list[bytes]:
    return [m.body for m in engine.pull("orders")]


def test_one_decision_makes_all_attempts_of_a_batch_visible() -> None:
    engine = MemoryEngine()
    first = attempt(engine, "a1", b"a", b"b")
    attempt(engine, "failed", b"x")
    second = attempt(engine, "a2", b"c")

    decision = decide(engine, first, second)

    assert decision.reply == BatchReply(outcome="decided", rows=3)
    (record,) = decision.records
    assert isinstance(record, BatchDecided)
    assert (record.heads, record.ranges) == ([0, 3], [(0, 1), (1, 1), (3, 1)])
    assert bodies(engine) == [b"a", b"b", b"c"]
    assert engine.state(2) is State.PREPARED
    assert engine.core.parts == {}
    assert engine.core.heads == {}


def test_rows_of_one_queue_follow_each_other_in_the_order_of_the_attempts() -> None:
    engine = MemoryEngine()
    engine.append(message(b"before"))
    engine.prepare("a1", message(b"a"), message(b"p", queue_id=1), number=0, bulk=True)
    engine.prepare("a2", message(b"b"), message(b"q", queue_id=1), number=0, bulk=True)
    decide(engine, claim("a2", rows=2), claim("a1", rows=2))
    assert bodies(engine) == [b"before", b"b", b"a"]
    assert [m.body for m in engine.pull("orders", 1)] == [b"q", b"p"]


def test_an_empty_batch_is_decided_too() -> None:
    engine = MemoryEngine()
    assert decide(engine).reply == BatchReply(outcome="decided", rows=0)
    assert decide(engine).reply == BatchReply(outcome="already_done", rows=0)


@pytest.mark.parametrize("batch_id", [0, 7, "write-1"])
def test_a_repeated_batch_is_already_done_and_its_new_attempts_are_rolled_back(
    batch_id: int | str,
) -> None:
    engine = MemoryEngine()
    first = attempt(engine, "a1", b"a")
    decide(engine, first, batch_id=batch_id)
    again = attempt(engine, "a2", b"a", b"b")
    parked = attempt(engine, "a3", b"c")
    engine.park(3)

    decision = decide(engine, again, parked, claim("never"), first, again, batch_id=batch_id)

    assert decision.reply == BatchReply(outcome="already_done", rows=0)
    assert len(decision.records) == 2
    assert [engine.state(row) for row in range(4)] == [
        State.COMMITTED,
        State.ROLLED_BACK,
        State.ROLLED_BACK,
        State.ROLLED_BACK,
    ]
    assert bodies(engine) == [b"a"]


def test_the_same_decision_again_changes_nothing() -> None:
    engine = MemoryEngine()
    only = attempt(engine, "a1", b"a")
    decide(engine, only)
    decision = decide(engine, only)
    assert decision == Decision(reply=BatchReply(outcome="already_done", rows=0))
    assert bodies(engine) == [b"a"]


def test_a_batch_below_the_highest_of_its_query_is_already_done() -> None:
    engine = MemoryEngine()
    decide(engine, batch_id=5)
    late = attempt(engine, "a1", b"a")
    assert decide(engine, late, batch_id=4).reply == BatchReply(outcome="already_done", rows=0)
    assert engine.state(0) is State.ROLLED_BACK


@pytest.mark.parametrize(
    ("batch_id", "known"),
    [
        (3, {"last_decided": -1}),
        ("write-1", {"decided_by": "first", "decided": "", "now": ""}),
    ],
)
def test_a_batch_that_another_query_decided_is_refused_and_nothing_is_touched(
    batch_id: int | str, known: dict[str, object]
) -> None:
    engine = MemoryEngine()
    decide(engine, batch_id=batch_id, query_id="first")
    mine = attempt(engine, "a1", b"a")

    decision = decide(engine, mine, batch_id=batch_id, query_id="second")

    assert code(decision) == "batch_decided_by_another_query"
    assert decision.refused is not None
    assert decision.refused.fields == {
        "app_id": "app",
        "query_id": "second",
        "batch_id": batch_id,
        **known,
    }
    assert engine.state(0) is State.PREPARED


def test_another_query_with_the_same_rows_is_already_done_and_with_others_refused() -> None:
    engine = MemoryEngine()
    decide(engine, batch_id="x", query_id="first", content="1:aa")
    same = attempt(engine, "a1", b"a")
    decision = decide(engine, same, batch_id="x", query_id="second", content="1:aa")
    assert decision.reply == BatchReply(outcome="already_done", rows=0)
    assert engine.state(0) is State.ROLLED_BACK
    other = attempt(engine, "a2", b"b")
    decision = decide(engine, other, batch_id="x", query_id="second", content="1:bb")
    assert code(decision) == "batch_decided_by_another_query"
    assert engine.state(1) is State.PREPARED


def test_a_batch_after_a_gap_is_refused_if_its_query_leaves_none() -> None:
    """A restore has lost the decisions of batches 6 to 8."""
    engine = MemoryEngine()
    decide(engine, batch_id=5, is_gapless=True)
    late = attempt(engine, "a1", b"a")
    decision = decide(engine, late, batch_id=9, is_gapless=True)
    assert code(decision) == "batches_missing"
    assert decision.refused is not None
    assert decision.refused.fields["last_decided"] == 5
    assert engine.state(0) is State.PREPARED
    assert decide(engine, batch_id=6, is_gapless=True).reply == BatchReply(
        outcome="decided", rows=0
    )
    # An older writer, which may leave gaps.
    assert decide(engine, late, batch_id=9).reply == BatchReply(outcome="decided", rows=1)


def test_apps_do_not_share_their_batches() -> None:
    engine = MemoryEngine()
    decide(engine, app_id="a", query_id="q1")
    assert decide(engine, app_id="b", query_id="q2").reply == BatchReply(outcome="decided", rows=0)


@pytest.mark.parametrize(
    "wrong",
    [
        # A request is missing, or one too many; a row is missing, or one too many.
        claim("a2", last_number=0, rows=2),
        claim("a2", last_number=2, rows=2),
        claim("a2", last_number=1, rows=1),
        claim("a2", last_number=1, rows=3),
    ],
)
def test_an_attempt_that_differs_refuses_the_whole_batch(wrong: AttemptClaim) -> None:
    engine = MemoryEngine()
    right = attempt(engine, "a1", b"a")
    attempt(engine, "a2", b"b", b"c")

    decision = decide(engine, right, wrong)

    assert code(decision) == "attempt_differs"
    assert decision.refused is not None
    assert decision.refused.fields == {"attempt": "a2", "last_number": 1, "rows": 2}
    assert {engine.state(row) for row in range(3)} == {State.PREPARED}
    assert decide(engine, right).reply == BatchReply(outcome="decided", rows=1)


def test_an_attempt_that_is_not_prepared_refuses_the_whole_batch() -> None:
    engine = MemoryEngine()
    right = attempt(engine, "a1", b"a")
    committed = attempt(engine, "a2", b"b")
    rolled_back = attempt(engine, "a3", b"c")
    parked = attempt(engine, "a4", b"d")
    engine.commit(1)
    engine.rollback(2)
    engine.park(3)
    engine.prepare("", message(b"e"))
    for wrong in (claim("never"), claim(""), committed, rolled_back, parked):
        assert code(decide(engine, right, wrong)) == "attempt_not_prepared"
    assert engine.state(0) is State.PREPARED


def test_an_attempt_named_twice_refuses_the_whole_batch() -> None:
    engine = MemoryEngine()
    twice = attempt(engine, "a1", b"a")
    assert code(decide(engine, twice, twice)) == "attempt_not_prepared"


def test_a_delay_counts_from_the_batchs_decision() -> None:
    engine = MemoryEngine()
    engine.prepare(
        "a1", message(b"now"), message(b"later", deliver_after_ms=5_000), number=0, bulk=True
    )
    decide(engine, claim("a1", rows=2))
    assert bodies(engine) == [b"now"]
    engine.clock.advance(ms=5_000)
    assert engine.release_due() == [1]
    assert bodies(engine) == [b"now", b"later"]


def test_the_end_of_an_attempt_is_answered_with_the_decider_and_time_of_its_batch() -> None:
    engine = MemoryEngine()
    decide(engine, attempt(engine, "a1", b"a", b"b"))
    decided_at_ms = engine.clock.now_ms()
    engine.clock.advance(seconds=1)
    settled = engine.commit(1)
    assert (settled.by, settled.at_ms, settled.repeated) == ("driver", decided_at_ms, True)


def test_an_old_attempt_is_copied_before_it_becomes_visible() -> None:
    engine = MemoryEngine()
    old = attempt(engine, "a1", b"a")
    engine.clock.advance(ms=HOUR_MS - 1)
    young = attempt(engine, "a2", b"b")
    engine.clock.advance(ms=1)
    assert decide(engine, old, young).carries == (0,)
    assert bodies(engine) == [b"a", b"b"]
    assert engine.core.carried_at_ms == {}


def test_a_refused_or_finished_batch_copies_nothing() -> None:
    engine = MemoryEngine()
    old = attempt(engine, "a1", b"a")
    engine.clock.advance(ms=HOUR_MS)
    assert decide(engine, old, claim("never")).carries == ()
    decide(engine, batch_id=1)
    assert decide(engine, old, batch_id=1).carries == ()
