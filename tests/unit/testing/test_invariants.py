"""The witness sees each kind of broken promise; a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from escrowmq.testing import MemoryEngine, message
from escrowmq.testing.invariants import Witness
from escrowmq.transaction.memory.parts import TransactionParts
from escrowmq.transaction.records import Decided, Record, Released, Span
from escrowmq.transaction.states import State


def story() -> MemoryEngine:
    """Row 0 visible, rows 1 to 3 one undecided transaction in two parts, row 4 parked."""
    engine = MemoryEngine()
    engine.prepare("committed")
    engine.commit(0)
    engine.prepare("open", message(), message(deliver_after_ms=5), number=0)
    engine.prepare("open", message(), number=1)
    engine.prepare("parked")
    engine.park(4)
    return engine


def change(row: int, **fields: object) -> Callable[[MemoryEngine], None]:
    def plant(engine: MemoryEngine) -> None:
        engine.table.rows[row] = msgspec.structs.replace(engine.table.rows[row], **fields)

    return plant


def test_a_sound_core_is_not_accused() -> None:
    engine = story()
    witness = Witness(engine.core)
    witness.check(record for frame in engine.frames for record in frame.records)
    engine.commit(3)
    witness.check(engine.frames[-1].records)
    engine.clock.advance(ms=5)
    engine.release_due()
    engine.append(message())
    witness.check(record for frame in engine.frames[-2:] for record in frame.records)


@pytest.mark.parametrize(
    "plant",
    [
        # A decision that changes, or is undone.
        change(0, state=State.ROLLED_BACK),
        change(0, state=State.PREPARED),
        # Rows of one transaction in different states.
        change(3, state=State.PARKED, next_at_ms=2**63 - 1),
        # Rows that are due although they are parked or not a head.
        change(4, next_at_ms=5),
        change(2, next_at_ms=5),
        # A head that is never due.
        change(1, next_at_ms=2**63 - 1),
        # More checks than allowed, or a check on a row that is not a head.
        change(1, checks_sent=16),
        change(2, checks_sent=1),
        # Leftovers of decided transactions, or missing facts.
        lambda engine: engine.core.delays.update({0: 5}),
        lambda engine: engine.core.resumed_at_ms.update({0: 5}),
        lambda engine: engine.core.heads.update({0: 1}),
        lambda engine: engine.core.heads.clear(),
        lambda engine: engine.core.parts.clear(),
        lambda engine: engine.core.parts.update({4: TransactionParts([(4, 1)], 1, 0)}),
        # A queue end that no record gave.
        lambda engine: engine.core.queue_ends.__setitem__(9, 0),
        lambda engine: engine.core.queue_ends.__setitem__(0, 7),
    ],
)
def test_a_planted_fault_is_seen(plant: Callable[[MemoryEngine], None]) -> None:
    engine = story()
    witness = Witness(engine.core)
    witness.check(record for frame in engine.frames for record in frame.records)
    plant(engine)
    with pytest.raises(AssertionError):
        witness.check()


@pytest.mark.parametrize(
    "record",
    [
        # An offset given twice, and one left out.
        Released([1], [0], [0]),
        Released([1], [0], [2]),
        Decided(1, State.COMMITTED, "me", [(1, 2)], [Span(0, 0, 2)], []),
    ],
)
def test_a_queue_offset_given_twice_or_left_out_is_seen(record: Record) -> None:
    engine = story()
    witness = Witness(engine.core)
    witness.check(record for frame in engine.frames for record in frame.records)
    with pytest.raises(AssertionError, match="queue 0 got"):
        witness.check([record])
