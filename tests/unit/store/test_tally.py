"""Transactions in a log are counted without keeping their records."""

from __future__ import annotations

from escrowmq.store.repair.tally import Tally
from escrowmq.transaction.records import (
    BatchDecided,
    Carried,
    CarriedRow,
    Decided,
    Parked,
    Placed,
    Prepared,
    Record,
    Resumed,
    Span,
)
from escrowmq.transaction.states import State


def prepared(first: int, head: int | None = None) -> Prepared:
    return Prepared(first, first if head is None else head, 0, "t", 0, 0, [], Placed([0]))


def moved(row: int, state: State, head: int) -> Carried:
    fields = CarriedRow(row, 0, 0, 0, state, 0, 0, 0, head, 0, "t", 0)
    return Carried([fields], Placed([0]))


def counted(*records: Record) -> tuple[int, int, int, int]:
    tally = Tally()
    tally.read(list(records))
    counts = tally.counts()
    return counts.prepared, counts.parked, counts.committed, counts.rolled_back


def test_a_batch_counts_each_of_its_transactions() -> None:
    decided = BatchDecided("app", "query", 1, "spark", [0, 1], [(0, 2)], [Span(0, 0, 2)], [])
    assert counted(prepared(0), prepared(1), prepared(2), decided) == (1, 0, 2, 0)


def test_a_later_request_is_no_transaction_of_its_own() -> None:
    assert counted(prepared(0), prepared(1, head=0)) == (1, 0, 0, 0)


def test_a_carried_transaction_of_deleted_log_counts() -> None:
    assert counted(moved(7, State.PREPARED, 7), moved(9, State.PARKED, 9)) == (1, 1, 0, 0)


def test_of_what_was_carried_forward_only_undecided_heads_count() -> None:
    assert counted(moved(7, State.COMMITTED, 7), moved(9, State.PREPARED, 8)) == (0, 0, 0, 0)


def test_a_decision_without_its_half_message_counts_as_a_decision_only() -> None:
    rollback = Decided(70_000, State.ROLLED_BACK, "x", [(70_000, 1)], [], [])
    assert counted(rollback, Parked(70_000, ""), Resumed(70_000, 0, "x")) == (0, 0, 0, 1)


def test_decided_transactions_take_no_memory() -> None:
    tally = Tally()
    for row in range(0, 400_000, 1_000):
        tally.read([prepared(row), Decided(row, State.COMMITTED, "x", [(row, 1)], [], [])])
    assert len(tally._undecided._chunks) == 1
    assert (tally.counts().prepared, tally.counts().committed) == (0, 400)
