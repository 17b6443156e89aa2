"""One decision per transaction: the first one stands, for every caller and every repeat."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from escrowmq.model.errors import RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.model.sink_attempt import SinkAttempt, SinkRun
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Begin, Decision, End, EndReply, Verdict, VerdictKind
from escrowmq.transaction.decisions.deciding import REMARK_CHARS_MAX
from escrowmq.transaction.records import NEVER, Answered, BatchDecided, Decided, Span
from escrowmq.transaction.states import RESOLVES, State

COMMIT, ROLLBACK, UNKNOWN = Resolution
HOUR_MS = 3_600_000


def engine_in(state: State, *, messages: int = 1) -> MemoryEngine:
    """An engine with one transaction, at half offset 0, in this state; decided by "first"."""
    engine = MemoryEngine()
    engine.prepare("t", *[message(b"%d" % n) for n in range(messages)])
    match state:
        case State.COMMITTED:
            engine.commit(0, by="first")
        case State.ROLLED_BACK:
            engine.rollback(0, by="first")
        case State.PARKED:
            engine.park(0)
    assert engine.state(0) is state
    engine.clock.advance(seconds=10)
    return engine


def end(
    engine: MemoryEngine,
    resolution: Resolution,
    *,
    half_offset: int = 0,
    log_offset: int | None = None,
    group: str | None = None,
    from_check: bool = False,
    remark: str = "",
) -> Decision:
    return engine.submit(
        End(
            half_offset=half_offset,
            resolution=resolution,
            by="second",
            log_offset=log_offset,
            group=group,
            from_check=from_check,
            remark=remark,
        )
    )


def code(decision: Decision) -> str:
    assert decision.records == ()
    assert decision.reply is None
    assert decision.refused is not None
    return decision.refused.code


@pytest.mark.parametrize(("state", "resolution"), list(product(State, (COMMIT, ROLLBACK))))
def test_an_answer_leads_where_the_table_says_or_is_refused(
    state: State, resolution: Resolution
) -> None:
    engine = engine_in(state)

    decision = end(engine, resolution)

    target = RESOLVES.get((state, resolution))
    if target is None:
        assert code(decision) == f"already_{state.label}"
        assert engine.state(0) is state
    else:
        assert isinstance(decision.reply, EndReply)
        assert decision.reply.state is target
        assert decision.reply.repeated is (target is state)
        assert engine.state(0) is target


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_a_repeated_decision_is_answered_with_the_author_and_time_of_the_first(
    resolution: Resolution,
) -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    first = engine.end(0, resolution, by="first")
    decided_at_ms = engine.clock.now_ms()
    engine.clock.advance(seconds=10)

    repeated = end(engine, resolution)

    assert not first.repeated
    assert (first.by, first.at_ms) == ("first", decided_at_ms)
    assert repeated.records == ()
    assert repeated.reply == EndReply(
        half_offset=0, state=first.state, by="first", at_ms=decided_at_ms, repeated=True
    )


def test_the_opposite_decision_is_refused_with_the_author_and_time_of_the_first() -> None:
    engine = engine_in(State.COMMITTED)

    refused = end(engine, ROLLBACK).refused

    assert refused is not None
    assert refused.code == "already_committed"
    assert refused.fields == {
        "half_offset": 0,
        "by": "first",
        "at_ms": engine.clock.now_ms() - 10_000,
    }


@pytest.mark.parametrize("state", State)
def test_unknown_decides_nothing(state: State) -> None:
    engine = engine_in(state)
    assert end(engine, UNKNOWN) == Decision()
    assert engine.state(0) is state


def test_unknown_as_the_answer_to_a_check_is_recorded_with_the_number_of_the_check() -> None:
    engine = engine_in(State.PREPARED, messages=2)
    engine.check_sent(0)
    decision = end(engine, UNKNOWN, half_offset=1, from_check=True)
    assert decision == Decision(records=(Answered(0, 1, "second"),))
    assert engine.state(0) is State.PREPARED


def test_the_remark_of_an_unknown_is_recorded_up_to_its_limit() -> None:
    engine = engine_in(State.PREPARED)
    engine.check_sent(0)
    for remark in ("no table", "x" * REMARK_CHARS_MAX, "x" * REMARK_CHARS_MAX + "y"):
        decision = end(engine, UNKNOWN, from_check=True, remark=remark)
        kept = remark[:REMARK_CHARS_MAX]
        assert decision == Decision(records=(Answered(0, 1, "second", kept),))


@pytest.mark.parametrize("state", [State.COMMITTED, State.ROLLED_BACK, State.PARKED])
def test_unknown_to_a_check_that_no_longer_matters_is_not_recorded(state: State) -> None:
    assert end(engine_in(state), UNKNOWN, from_check=True) == Decision()


def test_one_decision_makes_all_messages_of_a_transaction_visible_in_order() -> None:
    engine = MemoryEngine()
    engine.append(message(b"before"))
    engine.prepare("t", message(b"a"), message(b"b", topic="stock"), message(b"c"))
    assert engine.pull("stock") == []

    engine.commit(0)

    assert [m.body for m in engine.pull("orders")] == [b"before", b"a", b"c"]
    assert [m.body for m in engine.pull("stock")] == [b"b"]
    assert {engine.state(row) for row in range(3)} == {State.COMMITTED}
    decided = engine.frames[-1].records[0]
    assert isinstance(decided, Decided)
    assert decided.ranges == [(0, 3)]
    assert sorted(decided.given, key=lambda span: span.queue) == [Span(0, 1, 2), Span(1, 0, 1)]


def test_a_rollback_makes_nothing_visible_and_gives_no_queue_offset() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"), message(b"b"))
    engine.rollback(1)
    engine.append(message(b"after"))
    assert [m.body for m in engine.pull("orders")] == [b"after"]
    assert engine.core.queue_ends == {0: 1}


@pytest.mark.parametrize("row", [0, 1, 3, 4])
def test_any_half_message_stands_for_its_transaction(row: int) -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"), message(b"b"), number=0)
    engine.prepare("other")
    engine.prepare("t", message(b"c"), message(b"d"), number=1)

    first = engine.commit(row)

    assert (first.half_offset, first.repeated) == (row, False)
    assert {engine.state(half) for half in (0, 1, 3, 4)} == {State.COMMITTED}
    assert engine.state(2) is State.PREPARED
    assert [m.body for m in engine.pull("orders")] == [b"a", b"b", b"c", b"d"]
    assert engine.core.parts == {}
    assert engine.core.heads == {}
    again = engine.commit(row)
    assert (again.half_offset, again.by, again.at_ms) == (row, first.by, first.at_ms)


def test_every_part_of_a_decided_transaction_repeats_the_one_decision() -> None:
    engine = MemoryEngine()
    engine.prepare("t", number=0)
    engine.prepare("t", number=1)
    engine.commit(1, by="first")
    assert engine.commit(0, by="second").by == "first"
    assert engine.commit(1, by="third").by == "first"
    assert code(end(engine, ROLLBACK, half_offset=1)) == "already_committed"


def test_the_end_of_an_unknown_half_message_is_refused() -> None:
    refused = end(engine_in(State.PREPARED), COMMIT, half_offset=1).refused
    assert refused is not None
    assert (refused.code, refused.fields) == ("no_such_half_message", {"half_offset": 1})


def test_an_ordinary_message_that_waits_for_its_time_cannot_be_ended() -> None:
    engine = MemoryEngine()
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + 1_000))
    assert code(end(engine, COMMIT)) == "no_such_half_message"
    assert code(end(engine, ROLLBACK)) == "no_such_half_message"


@pytest.mark.parametrize(
    ("resolution", "state"), [(COMMIT, State.COMMITTED), (ROLLBACK, State.ROLLED_BACK)]
)
def test_an_end_must_name_the_place_and_the_group_of_its_half_message(
    resolution: Resolution, state: State
) -> None:
    engine = MemoryEngine()
    held = engine.prepare("t", message(b"a"), message(b"b"), group="pay")
    wrong_place = end(engine, resolution, log_offset=held.log_offsets[1])
    wrong_group = end(engine, resolution, log_offset=held.log_offsets[0], group="ship")
    assert code(wrong_place) == "log_offset_wrong"
    assert code(wrong_group) == "producer_group_wrong"
    assert engine.state(0) is State.PREPARED

    right = end(engine, resolution, log_offset=held.log_offsets[0], group="pay")
    assert right.refused is None
    assert engine.state(1) is state


def test_a_decision_for_another_transaction_or_another_history_is_refused() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"))
    commit = End(half_offset=0, resolution=COMMIT, by="late")
    for believed, refusal in (
        (replace(commit, ids=("other",)), "transaction_id_wrong"),
        (replace(commit, epoch="other", seen_to=0), "other_history"),
    ):
        assert code(engine.submit(believed)) == refusal
    assert engine.state(0) is State.PREPARED
    engine.submit(Begin(epoch="now"))
    right = replace(commit, ids=("other", "t"), epoch="now", seen_to=1)
    assert engine.submit(right).refused is None


def test_a_wrong_belief_is_refused_even_if_the_answer_is_unknown() -> None:
    engine = engine_in(State.PREPARED)
    assert code(end(engine, UNKNOWN, group="ship", from_check=True)) == "producer_group_wrong"


def test_a_late_commit_decides_a_parked_transaction() -> None:
    engine = engine_in(State.PARKED, messages=2)
    engine.commit(1)
    assert [m.body for m in engine.pull("orders")] == [b"0", b"1"]


# Delays.


def test_a_delayed_message_becomes_visible_its_delay_after_the_commit() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"now"), message(b"later", deliver_after_ms=5_000))
    engine.clock.advance(seconds=3)
    committed_at_ms = engine.clock.now_ms()
    engine.commit(0)
    assert [m.body for m in engine.pull("orders")] == [b"now"]
    later = engine.core.table.get(1)
    assert later is not None
    assert (later.state, later.next_at_ms) == (State.COMMITTED, committed_at_ms + 5_000)
    assert engine.core.delays == {}

    engine.clock.set(committed_at_ms + 4_999)
    assert engine.release_due() == []
    engine.clock.set(committed_at_ms + 5_000)
    assert engine.release_due() == [1]

    assert [m.body for m in engine.pull("orders")] == [b"now", b"later"]
    assert engine.release_due() == []


def test_the_rollback_of_a_delayed_message_leaves_nothing_waiting() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(deliver_after_ms=5_000))
    engine.rollback(0)
    half = engine.core.table.get(0)
    assert half is not None
    assert half.next_at_ms == NEVER
    assert engine.core.delays == {}
    engine.clock.advance(seconds=10)
    assert engine.release_due() == []


def test_a_delay_does_not_reopen_the_decision() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(deliver_after_ms=5_000))
    engine.commit(0)
    with pytest.raises(RequestRefused, match="already_committed"):
        engine.rollback(0)
    assert engine.commit(0).repeated


def test_a_transaction_without_delays_does_not_wait_because_another_one_does() -> None:
    engine = MemoryEngine()
    engine.prepare("delayed", message(deliver_after_ms=5_000))
    engine.prepare("t", message(b"now"))
    engine.commit(1)
    assert [m.body for m in engine.pull("orders")] == [b"now"]
    assert engine.core.delays == {0: 5_000}


# Verdicts of the pipeline end transactions in the same way.


@pytest.mark.parametrize(
    ("kind", "state"),
    [(VerdictKind.COMMIT, State.COMMITTED), (VerdictKind.ROLLBACK, State.ROLLED_BACK)],
)
def test_a_verdict_decides_in_the_name_of_the_pipeline(kind: VerdictKind, state: State) -> None:
    engine = engine_in(State.PREPARED)
    verdict = Verdict(half_offset=0, kind=kind, state=State.PREPARED, checks_sent=0)
    reply = engine.submit(verdict).reply
    assert isinstance(reply, EndReply)
    assert (reply.state, reply.by, reply.repeated) == (state, "settle", False)
    assert engine.state(0) is state


# Parts of a sink's attempts, whose batch another broker decides.

QUERY = "0b9a6a52-5f6f-4b0e-8f0c-2f0c5c0d9d11"


def hold_part(engine: MemoryEngine, batch: int, *, attempt: str, requests: int = 1) -> None:
    run = SinkRun(app_id="app", query_id=QUERY, run="0a0b0c0d", opened_at=1)
    part = SinkAttempt(run=run, batch=batch, partition=0, attempt=attempt * 32).elsewhere("home", 7)
    for number in range(requests):
        engine.prepare(
            part.transaction_id,
            message(b"x"),
            number=number,
            bulk=True,
            group=part.producer_group,
        )


def test_the_commit_of_a_part_remembers_its_batch() -> None:
    """After a restore, the home broker may not know a batch that this broker has committed."""
    engine = MemoryEngine()
    hold_part(engine, 6, attempt="a", requests=2)
    hold_part(engine, 6, attempt="b")
    decided, noted = end(engine, COMMIT).records
    assert isinstance(decided, Decided)
    assert noted == BatchDecided("app@home", QUERY, 6, "second", [], [], [], [])
    assert engine.core.batches.judge("app@home", QUERY, 6) == "done"
    assert engine.core.batches.judge("app@home", QUERY, 7) == "new"
    # The batch is already known.
    (decided,) = end(engine, COMMIT, half_offset=2).records
    assert isinstance(decided, Decided)
    assert [m.body for m in engine.pull("orders")] == [b"x"] * 3


def test_the_rollback_of_a_part_remembers_nothing() -> None:
    engine = MemoryEngine()
    hold_part(engine, 6, attempt="a")
    end(engine, ROLLBACK)
    assert engine.core.batches.apps == {}


def test_a_part_whose_name_tells_no_batch_is_committed_all_the_same() -> None:
    engine = MemoryEngine()
    engine.prepare("odd", message(b"x"), group="%SINK%app@home")
    (decided,) = end(engine, COMMIT).records
    assert isinstance(decided, Decided)
    assert engine.core.batches.apps == {}
