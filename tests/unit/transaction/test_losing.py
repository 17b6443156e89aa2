"""A transaction that damage made incomplete ends undelivered as a whole."""

from __future__ import annotations

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Abandon, Decision, EndReply
from escrowmq.transaction.core import Where
from escrowmq.transaction.decisions.losing import is_incomplete
from escrowmq.transaction.records import Decided, Lost, Released
from escrowmq.transaction.states import State


def abandon(engine: MemoryEngine, row: int) -> Decision:
    return engine.submit(Abandon(half_offset=row, by="repair"))


def lose(engine: MemoryEngine, *rows: int) -> None:
    """Remove these rows, as if their frames were damaged and cut out."""
    for row in rows:
        del engine.table.rows[row]


def two_parts() -> MemoryEngine:
    """One undecided transaction with rows 0 and 1, then 2 and 3."""
    engine = MemoryEngine()
    engine.prepare("t", message(), message(), number=0)
    engine.prepare("t", message(), message(), number=1)
    return engine


@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("is_parked", [False, True])
def test_an_undecided_transaction_is_rolled_back_as_a_whole(
    row: int,
    is_parked: bool,  # noqa: FBT001 - a column of the table
) -> None:
    engine = two_parts()
    if is_parked:
        engine.park(0)
    decision = abandon(engine, row)
    assert isinstance(decision.reply, EndReply)
    assert (decision.reply.state, decision.reply.by) == (State.ROLLED_BACK, "repair")
    assert {engine.state(half) for half in range(4)} == {State.ROLLED_BACK}
    assert engine.pull("orders") == []


@pytest.mark.parametrize("resolution", [Resolution.COMMIT, Resolution.ROLLBACK])
def test_a_decision_stands(resolution: Resolution) -> None:
    engine = two_parts()
    engine.end(0, resolution)
    assert abandon(engine, 0) == Decision()
    assert not is_incomplete(engine.core, engine.core.row(0))


def test_nothing_is_abandoned_that_is_not_there() -> None:
    refused = abandon(MemoryEngine(), 0).refused
    assert refused is not None
    assert refused.code == "no_such_half_message"


def test_a_message_that_waits_gets_its_place_in_the_queue() -> None:
    engine = MemoryEngine()
    engine.append(message(b"before"))
    engine.prepare("t", message(deliver_after_ms=1_000))
    engine.commit(0)
    assert abandon(engine, 0).records == (Released([0], [0], [1]),)
    engine.clock.advance(ms=1_000)
    assert engine.release_due() == []


def test_a_transaction_with_all_its_parts_is_complete() -> None:
    engine = two_parts()
    assert not any(is_incomplete(engine.core, engine.core.row(row)) for row in range(4))


def test_a_part_without_its_head_is_incomplete_and_ends_alone() -> None:
    engine = two_parts()
    lose(engine, 0, 1)
    engine.core.parts.clear()
    assert is_incomplete(engine.core, engine.core.row(3))
    (decided,) = abandon(engine, 3).records
    assert isinstance(decided, Decided)
    assert (decided.head, decided.ranges) == (0, [(2, 2)])
    assert engine.state(2) is engine.state(3) is State.ROLLED_BACK


def test_a_row_without_its_first_row_is_a_request_of_its_own() -> None:
    engine = two_parts()
    lose(engine, 2)
    assert is_incomplete(engine.core, engine.core.row(3))
    (decided,) = engine.core.decide(Abandon(half_offset=3, by="repair"), 0).records
    assert isinstance(decided, Decided)
    assert decided.ranges == [(0, 2), (2, 2), (3, 1)]


def test_queues_go_on_after_what_was_lost() -> None:
    engine = MemoryEngine()
    engine.append(message())
    engine.core.apply(Lost(length=100, queue_ends=[(0, 5)]), Where(0, 44, 0))
    assert engine.append(message()).queue_offsets == [5]
