"""Transactions of several requests, whose parts a checkpoint shares with the core."""

from __future__ import annotations

from escrowmq.transaction.memory.parts import PartsByHead, TransactionParts


def test_a_transaction_that_grows_leaves_frozen_parts_as_they_were() -> None:
    known = PartsByHead({7: TransactionParts([(7, 1), (9, 2)], 3, 30)})
    frozen = known.frozen()
    parts = known.to_grow(7)
    assert parts is not None
    parts.ranges.append((20, 5))
    assert frozen[7].ranges == [(7, 1), (9, 2)]
    assert known[7].ranges == [(7, 1), (9, 2), (20, 5)]


def test_parts_are_copied_once_after_each_freeze() -> None:
    known = PartsByHead()
    known.add(7, TransactionParts([(7, 1), (9, 2)], 3, 30))
    first = known.to_grow(7)
    assert known.to_grow(7) is first
    known.frozen()
    assert known.to_grow(7) is not first
