"""Undecided and waiting messages in a topic that is deleted."""

from __future__ import annotations

import pytest

from escrowmq.model.catalog import Topic
from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    Abandon,
    AttemptClaim,
    Carry,
    Cataloged,
    DecideBatch,
    End,
    PutTopic,
    Resume,
    Verdict,
    VerdictKind,
    Verdicts,
)
from escrowmq.transaction.core import Where
from escrowmq.transaction.decisions.checking import outcome_of
from escrowmq.transaction.records import (
    NOWHERE,
    Carried,
    Decided,
    Parked,
    Released,
    Span,
)
from escrowmq.transaction.states import State
from tests.unit.transaction.test_cataloging import bodies, code, engine_of, remove

HOUR_MS = 3_600_000


# Undecided messages.


def test_a_topic_with_undecided_messages_is_deleted_by_force_only() -> None:
    engine = engine_of("orders")
    held = engine.prepare("t", message(), message(queue_id=1))
    parked = engine.prepare("u")
    engine.park(parked.half_offset)
    decision = remove(engine)
    assert code(decision) == "topic_undecided"
    assert decision.refused is not None
    assert decision.refused.fields["undecided"] == 3
    assert decision.refused.fields["half_offsets"] == [held.half_offset, 1, parked.half_offset]
    assert code(remove(engine, is_forced=True, reason="expired")) == "topic_undecided"
    assert engine.core.catalog.topic("orders") is not None
    forced = remove(engine, is_forced=True)
    assert forced.reply == Cataloged(is_changed=True, undecided=3)
    assert engine.core.catalog.topic("orders") is None


def test_one_that_is_not_used_any_more_must_have_nothing_that_waits() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    assert code(remove(engine, reason="expired")) == "topic_undecided"
    assert remove(engine).reply == Cataloged(is_changed=True, waiting=1)
    assert remove(engine_of("orders"), reason="expired").refused is None


def deleted_with_a_half(*more: str) -> tuple[MemoryEngine, int]:
    """A half message whose topic was deleted and made again."""
    engine = engine_of("orders", *more)
    messages = (message(b"old"), *(message(topic=name) for name in more))
    held = engine.prepare("t", *messages)
    remove(engine, is_forced=True)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    return engine, held.half_offset


def commit(half_offset: int) -> End:
    return End(half_offset=half_offset, resolution=Resolution.COMMIT, by="producer")


@pytest.mark.parametrize("more", [(), ("other",)])
def test_a_later_commit_parks_it_as_topic_deleted(more: tuple[str, ...]) -> None:
    engine, row = deleted_with_a_half(*more)
    decision = engine.submit(commit(row))
    assert code(decision) == "topic_deleted"
    assert decision.records == (Parked(row, "topic_deleted"),)
    assert decision.refused is not None
    assert decision.refused.fields["topic"] == "orders"
    assert engine.state(row) is State.PARKED
    # A repeat writes nothing, and the transaction cannot be resumed.
    again = engine.submit(commit(row))
    assert (code(again), again.records) == ("topic_deleted", ())
    assert code(engine.submit(Resume(half_offset=row, by="admin"))) == "topic_deleted"
    assert bodies(engine) == []
    assert [one.body for one in engine.pull("other")] == []
    engine.rollback(row)
    assert engine.state(row) is State.ROLLED_BACK
    assert engine.append(message(b"new")).queue_offsets == [0]
    assert bodies(engine.restart()) == [b"new"]


def test_a_rollback_ends_it_as_always() -> None:
    engine, row = deleted_with_a_half()
    engine.rollback(row)
    assert engine.state(row) is State.ROLLED_BACK


def test_other_transactions_are_committed_as_before() -> None:
    engine, _ = deleted_with_a_half()
    engine.commit(engine.prepare("u", message(b"new")).half_offset)
    engine.commit(engine.prepare("v", message(b"more"), message(b"most")).half_offset)
    assert bodies(engine) == [b"new", b"more", b"most"]
    parked = engine.prepare("w", message(b"parked")).half_offset
    engine.park(parked)
    engine.resume(parked)
    assert engine.state(parked) is State.PREPARED


def test_a_verdict_parks_it_and_many_verdicts_leave_it_alone() -> None:
    engine, row = deleted_with_a_half()
    other = engine.prepare("u", message(b"new")).half_offset
    many = engine.submit(
        Verdicts(
            half_offsets=[row, other],
            commits=[1, 1],
            states=[State.PREPARED] * 2,
            checks_sent=[0] * 2,
        )
    )
    assert many.reply is not None
    assert engine.state(row) is State.PREPARED
    assert engine.state(other) is State.COMMITTED
    verdict = Verdict(half_offset=row, kind=VerdictKind.COMMIT, state=State.PREPARED, checks_sent=0)
    decision = engine.submit(verdict)
    assert outcome_of(decision).value == "parked"
    assert engine.state(row) is State.PARKED


def test_a_batch_into_a_topic_that_was_deleted_meanwhile_is_refused_whole() -> None:
    engine = engine_of("orders", "other")
    engine.prepare("a", message(b"row"), number=0, bulk=True)
    engine.prepare("b", message(b"row", topic="other"), number=0, bulk=True)
    remove(engine, is_forced=True)
    batch = DecideBatch(
        app_id="app",
        query_id="query",
        batch_id=0,
        attempts=tuple(AttemptClaim(transaction_id=one, last_number=0, rows=1) for one in "ab"),
        by="driver",
    )
    decision = engine.submit(batch)
    assert (code(decision), decision.records) == ("topic_deleted", ())
    assert engine.pull("other") == []
    # Written again, into the new topic, the batch is decided.
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.prepare("c", message(b"again"), number=0, bulk=True)
    attempts = tuple(AttemptClaim(transaction_id=one, last_number=0, rows=1) for one in "cb")
    again = DecideBatch(app_id="app", query_id="query", batch_id=0, attempts=attempts, by="driver")
    assert engine.submit(again).refused is None
    assert bodies(engine) == [b"again"]


# Messages that are not yet due.


def test_delayed_messages_of_a_deleted_topic_are_dropped_when_their_time_comes() -> None:
    engine = engine_of("orders", "other")
    at_ms = engine.clock.now_ms() + HOUR_MS
    engine.append(message(b"old", deliver_at_ms=at_ms))
    engine.append(message(b"kept", topic="other", deliver_at_ms=at_ms))
    held = engine.prepare("t", message(b"half", deliver_after_ms=HOUR_MS))
    engine.commit(held.half_offset)
    remove(engine)
    engine.submit(PutTopic(topic=Topic(name="orders")))
    engine.clock.advance(ms=HOUR_MS)
    assert engine.release_due() == [0, 1, 2]
    dropped, released = engine.frames[-1].records
    assert isinstance(dropped, Released)
    assert isinstance(released, Released)
    assert (dropped.rows, dropped.queue_offsets) == ([0, 2], [NOWHERE, NOWHERE])
    assert released.rows == [1]
    assert engine.release_due() == []
    assert bodies(engine) == []
    assert [one.body for one in engine.pull("other")] == [b"kept"]
    assert bodies(engine.restart()) == []


def test_when_none_is_left_only_the_drop_is_written() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    remove(engine)
    engine.clock.advance(ms=HOUR_MS)
    engine.release_due()
    assert [type(record) for record in engine.frames[-1].records] == [Released]
    assert engine.core.row(0).is_needed is False


def test_retention_does_not_carry_what_will_never_be_visible() -> None:
    engine = engine_of("orders", "other")
    at_ms = engine.clock.now_ms() + HOUR_MS
    engine.append(message(deliver_at_ms=at_ms), message(topic="other", deliver_at_ms=at_ms))
    engine.append(message(deliver_at_ms=at_ms))
    remove(engine)
    both = engine.submit(Carry(first=0))
    assert [type(record) for record in both.records] == [Released, Carried]
    assert [half.half_offset for half in both.copies] == [1]
    alone = engine.submit(Carry(first=2))
    assert [type(record) for record in alone.records] == [Released]
    assert [engine.core.row(row).is_needed for row in range(3)] == [False, True, False]


def test_a_transaction_that_damage_ended_gets_no_place_in_a_deleted_topic() -> None:
    engine = engine_of("orders")
    engine.append(message(deliver_at_ms=engine.clock.now_ms() + HOUR_MS))
    remove(engine)
    (record,) = engine.submit(Abandon(half_offset=0, by="repair")).records
    assert isinstance(record, Released)
    assert record.queue_offsets == [NOWHERE]


def test_a_decision_that_is_replayed_after_the_deletion_gives_no_place() -> None:
    engine = engine_of("orders")
    held = engine.prepare("t")
    remove(engine, is_forced=True)
    ranges = [(held.half_offset, 1)]
    record = Decided(held.half_offset, State.COMMITTED, "producer", ranges, [Span(0, 0, 1)], [])
    engine.core.apply(record, Where(0, 0, 0))
    assert engine.core.queue_ends == {}
