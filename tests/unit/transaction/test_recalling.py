"""Recalls of delayed messages: until they are visible, once, and only for what was stored."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Append, Decision, End, Prepare, Release, RemoveTopic
from escrowmq.transaction.recall_commands import Recall, RecallReply
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State

DELAY_MS = 60_000


def delayed(engine: MemoryEngine, count: int = 1) -> None:
    at_ms = engine.clock.now_ms() + DELAY_MS
    messages = tuple(message(b"%d" % one, deliver_at_ms=at_ms) for one in range(count))
    engine.submit(Append(messages=messages))


def recall(engine: MemoryEngine, row: int, *, epoch: str = "") -> Decision:
    known = engine.table.get(row)
    log_offset = 0 if known is None else known.log_offset
    return engine.submit(Recall(half_offset=row, log_offset=log_offset, epoch=epoch, by="sender"))


def code(decision: Decision) -> str:
    assert decision.refused is not None
    assert decision.records == ()
    return decision.refused.code


def released(engine: MemoryEngine) -> list[bytes]:
    engine.clock.advance(ms=DELAY_MS)
    engine.submit(Release(half_offsets=tuple(engine.due(engine.clock.now_ms(), 9))))
    return [one.body for one in engine.queues.get(0, [])]


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


def test_a_recalled_message_never_becomes_visible_and_the_others_do(engine: MemoryEngine) -> None:
    delayed(engine, 3)
    decision = recall(engine, 1)
    assert decision.records == (Recalled(1, 0, "sender"),)
    assert decision.reply == RecallReply(half_offset=1, repeated=False)
    row = engine.core.row(1)
    assert (row.state, row.next_at_ms, row.is_needed) == (State.ROLLED_BACK, NEVER, False)
    assert released(engine) == [b"0", b"2"]


def test_a_repeat_is_answered_like_the_first_time(engine: MemoryEngine) -> None:
    delayed(engine)
    recall(engine, 0)
    again = recall(engine, 0)
    assert again.reply == RecallReply(half_offset=0, repeated=True)
    assert again.records == ()
    released(engine)
    assert recall(engine, 0).reply == RecallReply(half_offset=0, repeated=True)


def test_a_due_message_is_recalled_until_it_is_released(engine: MemoryEngine) -> None:
    delayed(engine, 2)
    engine.clock.advance(ms=DELAY_MS)
    rows = tuple(engine.due(engine.clock.now_ms(), 9))
    recall(engine, 0)
    engine.submit(Release(half_offsets=rows))
    assert [one.body for one in engine.queues[0]] == [b"1"]


def test_a_visible_message_cannot_be_recalled(engine: MemoryEngine) -> None:
    delayed(engine)
    assert released(engine) == [b"0"]
    assert code(recall(engine, 0)) == "recall_too_late"


def test_a_message_that_was_dropped_with_its_topic_cannot_be_recalled(
    engine: MemoryEngine,
) -> None:
    delayed(engine, 2)
    engine.submit(RemoveTopic(name="orders", by="operator", is_forced=True))
    assert isinstance(recall(engine, 0).reply, RecallReply)
    assert released(engine) == []
    assert code(recall(engine, 1)) == "recall_too_late"


def test_a_half_message_is_rolled_back_and_not_recalled(engine: MemoryEngine) -> None:
    later = message(b"half", deliver_after_ms=DELAY_MS)
    engine.submit(Prepare(group="pay", transaction_id="t", messages=(later,)))
    assert code(recall(engine, 0)) == "no_such_delayed_message"
    engine.submit(End(half_offset=0, resolution=Resolution.COMMIT, by="producer"))
    assert code(recall(engine, 0)) == "no_such_delayed_message"
    assert released(engine) == [b"half"]


def test_only_the_message_that_was_stored_there_is_recalled(engine: MemoryEngine) -> None:
    delayed(engine)
    at = engine.core.row(0).log_offset
    for row, log_offset in ((0, at + 1), (1, at), (-1, at)):
        wrong = Recall(half_offset=row, log_offset=log_offset, epoch="", by="sender")
        assert code(engine.submit(wrong)) == "no_such_delayed_message"
    assert released(engine) == [b"0"]


def test_a_recall_under_another_history_is_refused(engine: MemoryEngine) -> None:
    delayed(engine)
    assert code(recall(engine, 0, epoch="elsewhere")) == "no_such_delayed_message"
    assert released(engine) == [b"0"]


def test_a_recalled_message_leaves_the_counts_of_its_queue(engine: MemoryEngine) -> None:
    delayed(engine, 2)
    assert engine.table.held_in([0], 9).waiting == {0: 2}
    recall(engine, 0)
    assert engine.table.held_in([0], 9).waiting == {0: 1}
