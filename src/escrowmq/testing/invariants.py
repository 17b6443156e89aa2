"""Invariants that must hold for the transactions after every step.

A ``Witness`` remembers earlier states, because the first law is that a decision never changes. It
uses only the public interface of the core and its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from escrowmq.transaction import records as kinds
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.records import NEVER, NOWHERE, PLAIN, QuietRecord
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from escrowmq.transaction.core import Transactions
    from escrowmq.transaction.records import Record
    from escrowmq.transaction.table import Half

_DECIDED = (State.COMMITTED, State.ROLLED_BACK)
_UNDECIDED = (State.PREPARED, State.PARKED)


class Witness:
    """Checks a core after each step; raises AssertionError at the first broken invariant."""

    def __init__(self, core: Transactions) -> None:
        self._core = core
        self._decided: dict[int, State] = {}
        self._ends: dict[int, int] = {}
        self._recalled: set[int] = set()

    def check(self, records: Iterable[Record] = ()) -> None:
        """Check all invariants; ``records`` are those that the step wrote."""
        for record in records:
            self._check_given(record)
            if isinstance(record, Recalled):
                self._check_recalled(record)
            elif isinstance(record, kinds.Released):
                shown = self._recalled.intersection(record.rows)
                assert not shown, f"{record} shows the recalled rows {shown}"
        self._check_ends()
        halves = list(self._halves())
        for half in halves:
            self._check_half(half)
        self._check_transactions()
        self._check_leftovers({half.half_offset for half in halves if half.state in _UNDECIDED})

    def _halves(self) -> Iterator[Half]:
        table = self._core.table
        rows = map(table.get, range(table.end))
        return (half for half in rows if half is not None)

    def _check_given(self, record: Record) -> None:
        """Check that queue offsets are given without gaps or repeats."""
        for queue, offset in _given(record):
            assert offset == self._ends.get(queue, 0), f"queue {queue} got {offset}: {record}"
            self._ends[queue] = offset + 1

    def _check_recalled(self, recalled: Recalled) -> None:
        """Check that a delayed message was recalled, once; it may change its state in no way."""
        row = recalled.row
        assert self._core.row(row).origin == PLAIN, f"row {row} is a half message"
        assert row not in self._recalled, f"row {row} is recalled twice"
        self._recalled.add(row)
        self._decided[row] = State.ROLLED_BACK

    def _check_ends(self) -> None:
        ends = self._core.queue_ends
        assert len(ends) == len(self._core.names.queues)
        for queue, end in self._ends.items():
            if queue not in ends:
                continue
            assert ends[queue] == end, f"queue {queue} ends at {ends[queue]}, gave {end}"

    def _check_half(self, half: Half) -> None:
        row = half.half_offset
        was = self._decided.get(row)
        assert was is None or half.state is was, f"row {row} was {was!r}, is {half.state!r}"
        if half.state in _DECIDED:
            self._decided[row] = half.state
        assert half.checks_sent <= self._core.policy.checks_max
        if half.state in (State.ROLLED_BACK, State.PARKED):
            assert half.next_at_ms == NEVER, f"row {row} is {half.state!r}, yet due"

    def _check_transactions(self) -> None:
        """Check that an undecided transaction's rows have one state, and only its head is due."""
        core = self._core
        for half in self._halves():
            if half.state not in _UNDECIDED:
                continue
            head = core.head_row(half)
            assert head.state is half.state, f"row {half.half_offset} and its head {head}"
            assert head.part & FIRST
            assert head.origin != PLAIN
            if half.half_offset != head.half_offset:
                assert half.next_at_ms == NEVER
                assert half.checks_sent == 0
            else:
                assert (half.next_at_ms == NEVER) is (half.state is State.PARKED)
            rows = {
                row
                for first, count in core.ranges_of(head.half_offset)
                for row in range(first, first + count)
            }
            assert half.half_offset in rows, f"{half.half_offset} is not in {rows}"

    def _check_leftovers(self, undecided: set[int]) -> None:
        """Check that a decision removes what the core keeps for an undecided transaction."""
        core = self._core
        assert core.parts.keys() <= undecided
        assert core.delays.keys() <= undecided
        assert core.resumed_at_ms.keys() <= undecided
        later = {first: head for head, parts in core.parts.items() for first, _ in parts.ranges[1:]}
        assert core.heads == later
        for head, parts in core.parts.items():
            assert len(parts.ranges) > 1
            assert parts.messages == sum(count for _, count in parts.ranges)
            assert parts.bytes == sum(core.table.sizes(*span) for span in parts.ranges), head


def _given(record: Record) -> Iterator[tuple[int, int]]:
    match record:
        case kinds.Stored():
            yield from zip(record.placed.queues, record.queue_offsets, strict=True)
        case kinds.Released():
            given = zip(record.queues, record.queue_offsets, strict=True)
            yield from (one for one in given if one[1] != NOWHERE)
        case kinds.Decided() | kinds.BatchDecided() | kinds.DecidedMany():
            for span in record.given:
                for offset in range(span.first, span.first + span.count):
                    yield span.queue, offset
        case _ if isinstance(record, kinds.MessageRecord | QuietRecord):
            pass
        case _:
            assert_never(record)
