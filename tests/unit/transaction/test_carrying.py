"""Copies and carrying: a late message is kept for a whole retention, a needed one is kept."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import (
    AttemptClaim,
    Carry,
    DecideBatch,
    Decision,
    End,
    Release,
)
from escrowmq.transaction.records import NEVER, PLAIN, UNNUMBERED, Carried, Decided, Released
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half

HOUR_MS = 3_600_000


def half(engine: MemoryEngine, row: int) -> Half:
    found = engine.core.table.get(row)
    assert found is not None
    return found


def rows_of(halves: tuple[Half, ...]) -> list[int]:
    return [one.half_offset for one in halves]


def is_copied(engine: MemoryEngine, row: int) -> bool:
    return half(engine, row).location != half(engine, row).log_offset


def commit(engine: MemoryEngine, half_offset: int) -> Decision:
    return engine.submit(End(half_offset=half_offset, resolution=Resolution.COMMIT, by="producer"))


def bodies(engine: MemoryEngine) -> list[bytes]:
    return [m.body for m in engine.pull("orders")]


# Late commits.


@pytest.mark.parametrize(("age_ms", "copied"), [(HOUR_MS - 1, False), (HOUR_MS, True)])
def test_a_half_an_hour_old_is_copied_when_it_commits(age_ms: int, copied: bool) -> None:  # noqa: FBT001 - a column of the table
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"), message(b"b"))
    before = [half(engine, row) for row in range(2)]
    engine.clock.advance(ms=age_ms)

    engine.commit(0)

    assert [is_copied(engine, row) for row in range(2)] == [copied] * 2
    assert bodies(engine) == [b"a", b"b"]
    for was, row in zip(before, range(2), strict=True):
        now = half(engine, row)
        # It keeps its log offset and store time, wherever its bytes are.
        assert (now.log_offset, now.stored_at_ms) == (was.log_offset, was.stored_at_ms)


def test_a_copy_is_a_frame_of_its_own_before_the_decision() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"a"))
    engine.clock.advance(ms=HOUR_MS)
    decision = commit(engine, 0)
    assert decision.carries == (0,)
    assert [[type(record) for record in frame.records] for frame in engine.frames[1:]] == [
        [Carried],
        [Decided],
    ]


def test_a_rollback_copies_nothing() -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.clock.advance(ms=HOUR_MS)
    engine.rollback(0)
    assert not is_copied(engine, 0)


@pytest.mark.parametrize("named", [0, 1])
def test_the_age_of_the_oldest_part_counts_whichever_part_the_commit_names(named: int) -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"old"), number=0)
    engine.clock.advance(ms=HOUR_MS - 1)
    engine.prepare("t", message(b"young"), number=1)
    engine.clock.advance(ms=1)

    assert commit(engine, named).carries == (0,)

    assert is_copied(engine, 0)
    assert not is_copied(engine, 1)
    assert bodies(engine) == [b"old", b"young"]


def test_each_request_is_copied_in_a_frame_of_its_own() -> None:
    """However large a bulk transaction is, no frame is larger than one request."""
    engine = MemoryEngine()
    for number in range(3):
        engine.prepare("t", message(b"%d" % number), message(), number=number, bulk=True)
    engine.clock.advance(ms=HOUR_MS)
    assert commit(engine, 0).carries == (0, 2, 4)
    moved = [frame.records[0] for frame in engine.frames[3:-1]]
    assert [[row.half_offset for row in m.rows] for m in moved if isinstance(m, Carried)] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


def test_a_recently_carried_message_is_not_copied_again() -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.clock.advance(ms=10 * HOUR_MS)
    engine.submit(Carry(first=0))
    carried_to = half(engine, 0).location
    engine.clock.advance(ms=HOUR_MS - 1)
    assert commit(engine, 0).carries == ()
    assert half(engine, 0).location == carried_to
    assert engine.core.carried_at_ms == {}


def test_a_message_carried_long_ago_is_copied_again() -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.clock.advance(ms=10 * HOUR_MS)
    engine.submit(Carry(first=0))
    engine.clock.advance(ms=HOUR_MS)
    assert commit(engine, 0).carries == (0,)


def test_a_delayed_message_is_copied_when_it_becomes_visible_not_before() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(b"later", deliver_after_ms=1_000), number=0)
    engine.prepare("t", message(b"now"), message(b"last", deliver_after_ms=9_000), number=1)
    engine.clock.advance(ms=HOUR_MS)
    assert commit(engine, 0).carries == (1,)
    assert [is_copied(engine, row) for row in range(3)] == [False, True, True]
    engine.clock.advance(ms=9_000)
    decision = engine.submit(Release(half_offsets=(0, 2)))
    # Row 2 was copied with its request 9 seconds ago.
    assert decision.carries == (0,)
    assert bodies(engine) == [b"now", b"later", b"last"]


# Releases.


def test_only_what_is_committed_and_due_is_released() -> None:
    engine = MemoryEngine()
    now_ms = engine.clock.now_ms()
    engine.prepare("prepared", message(b"0"), check_after_ms=0)
    engine.append(message(b"1", deliver_at_ms=now_ms + 1))
    engine.append(message(b"2", deliver_at_ms=now_ms + 2))
    engine.prepare("visible", message(b"3"))
    engine.commit(3)
    engine.clock.advance(ms=1)

    decision = engine.submit(Release(half_offsets=(0, 1, 2, 3, 99)))

    assert decision.records == (Released([1], [0], [1]),)
    assert bodies(engine) == [b"3", b"1"]
    assert engine.submit(Release(half_offsets=(0, 1, 2, 3, 99))) == Decision()


def test_a_row_named_twice_is_released_once() -> None:
    engine = MemoryEngine()
    engine.append(message(b"a", deliver_at_ms=engine.clock.now_ms() + 1))
    engine.clock.advance(ms=1)
    engine.submit(Release(half_offsets=(0, 0)))
    assert bodies(engine) == [b"a"]
    assert engine.core.queue_ends == {0: 1}


def test_messages_are_released_in_the_order_of_their_times() -> None:
    engine = MemoryEngine()
    now_ms = engine.clock.now_ms()
    engine.append(
        message(b"third", deliver_at_ms=now_ms + 3),
        message(b"first", deliver_at_ms=now_ms + 1),
        message(b"first too", deliver_at_ms=now_ms + 1),
        message(b"second", deliver_at_ms=now_ms + 2),
    )
    engine.clock.advance(ms=3)
    engine.release_due()
    assert bodies(engine) == [b"first", b"first too", b"second", b"third"]


def test_a_scheduled_message_is_copied_if_it_waited_for_an_hour() -> None:
    engine = MemoryEngine()
    now_ms = engine.clock.now_ms()
    engine.append(
        message(b"0", deliver_at_ms=now_ms + HOUR_MS - 1),
        message(b"1", deliver_at_ms=now_ms + HOUR_MS),
    )
    engine.append(message(b"2", deliver_at_ms=now_ms + HOUR_MS))
    engine.clock.advance(ms=HOUR_MS - 1)
    assert engine.release_due() == [0]
    assert not is_copied(engine, 0)
    engine.clock.advance(ms=1)
    decision = engine.submit(Release(half_offsets=(1, 2)))
    # Row 1 is named by its request's first row, which is visible already; row 2 was sent alone.
    assert decision.carries == (0,)
    assert rows_of(decision.carries_alone) == [2]
    assert [is_copied(engine, row) for row in range(3)] == [False, True, True]
    assert bodies(engine) == [b"0", b"1", b"2"]


# Carrying, for retention.


def test_undecided_half_messages_are_carried_with_all_that_is_known_of_them() -> None:
    engine = MemoryEngine()
    engine.prepare("other")
    engine.prepare("t", message(b"a"), number=0)
    engine.prepare("t", message(b"b", deliver_after_ms=7), message(b"c"), number=1)
    engine.check_sent(1)
    before = {row: half(engine, row) for row in (1, 2, 3)}
    stored_at_ms = engine.clock.now_ms()

    decision = engine.submit(Carry(first=2))

    assert rows_of(decision.copies) == [2, 3]
    (moved,) = decision.records
    assert isinstance(moved, Carried)
    first, second = moved.rows
    assert (first.transaction_id, first.number, first.head) == ("t", 1, 1)
    assert (first.part, first.deliver_after_ms) == (FIRST | 2, 7)
    assert (second.transaction_id, second.number, second.head) == ("", UNNUMBERED, 1)
    assert (second.part, second.deliver_after_ms) == (1, 0)
    assert {row.state for row in moved.rows} == {State.PREPARED}
    assert {row.stored_at_ms for row in moved.rows} == {stored_at_ms}
    assert half(engine, 1) == before[1]
    for row in (2, 3):
        assert half(engine, row).location != before[row].location
        assert half(engine, row).log_offset == before[row].log_offset
    engine.commit(1)
    engine.clock.advance(ms=7)
    engine.release_due()
    assert bodies(engine) == [b"a", b"c", b"b"]


def test_the_head_is_carried_with_its_checks() -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.check_sent(0)
    (moved,) = engine.submit(Carry(first=0)).records
    assert isinstance(moved, Carried)
    (row,) = moved.rows
    assert (row.checks_sent, row.next_at_ms) == (1, engine.clock.now_ms() + 30_000)


def test_a_parked_half_message_is_carried() -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.park(0)
    (moved,) = engine.submit(Carry(first=0)).records
    assert isinstance(moved, Carried)
    assert (moved.rows[0].state, moved.rows[0].next_at_ms) == (State.PARKED, NEVER)
    assert engine.state(0) is State.PARKED


def test_only_what_is_needed_of_a_request_is_carried() -> None:
    engine = MemoryEngine()
    engine.prepare("t", message(), message(deliver_after_ms=1_000), message())
    engine.commit(0)
    decision = engine.submit(Carry(first=0))
    assert rows_of(decision.copies) == [1]
    engine.clock.advance(ms=1_000)
    engine.release_due()
    assert engine.submit(Carry(first=0)) == Decision()


def test_a_scheduled_message_is_carried() -> None:
    engine = MemoryEngine()
    engine.append(message(b"a", deliver_at_ms=engine.clock.now_ms() + 1))
    (moved,) = engine.submit(Carry(first=0)).records
    assert isinstance(moved, Carried)
    assert (moved.rows[0].origin, moved.rows[0].state) == (PLAIN, State.COMMITTED)
    engine.clock.advance(ms=1)
    engine.release_due()
    assert bodies(engine) == [b"a"]


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_a_decided_request_is_not_carried(resolution: Resolution) -> None:
    engine = MemoryEngine()
    engine.prepare("t")
    engine.end(0, resolution)
    assert engine.submit(Carry(first=0)) == Decision()


def test_the_rest_of_a_request_is_carried_though_its_first_row_is_gone() -> None:
    """Retention has deleted the visible rows; waiting rows must still be carried forward."""
    engine = MemoryEngine()
    engine.prepare("t", message(), message(b"later", deliver_after_ms=1_000))
    engine.prepare("other")
    engine.commit(0)
    del engine.table.rows[0]
    decision = engine.submit(Carry(first=0))
    assert rows_of(decision.copies) == [1]
    engine.clock.advance(ms=1_000)
    engine.release_due()
    assert bodies(engine)[-1] == b"later"


def test_the_memory_of_moves_is_bounded() -> None:
    engine = MemoryEngine(moved_max=2)
    for number in range(4):
        engine.prepare(f"t{number}")
    engine.clock.advance(ms=HOUR_MS)
    for first in (0, 1, 2, 1, 3):
        engine.submit(Carry(first=first))
    # The latest two are remembered.
    assert list(engine.core.carried_at_ms) == [1, 3]
    # A forgotten one is only copied again.
    assert commit(engine, 0).carries == (0,)
    assert commit(engine, 3).carries == ()


def test_a_batch_of_any_age_and_size_is_copied_once() -> None:
    """The copies push each other out of the memory of recent ones, and still happen once."""
    engine = MemoryEngine(copy_after_ms=0, moved_max=1)
    for number in range(3):
        engine.prepare("attempt", message(b"%d" % number), number=number, bulk=True)
    claim = AttemptClaim(transaction_id="attempt", last_number=2, rows=3)
    decision = engine.submit(
        DecideBatch(app_id="a", query_id="q", batch_id=0, attempts=(claim,), by="driver")
    )
    assert decision.carries == (0, 1, 2)
    assert len(engine.frames) == 3 + 3 + 1
    assert bodies(engine) == [b"0", b"1", b"2"]
