"""Applying records again, in part, or on top of their result gives the same state."""

from __future__ import annotations

import typing

import pytest

from escrowmq.testing import MemoryEngine, MemoryTable, message
from escrowmq.testing.memory_log import MemoryFrame
from escrowmq.transaction import commands, records
from escrowmq.transaction.commands import AttemptClaim, Carry, DecideBatch
from escrowmq.transaction.core import Transactions, Where
from escrowmq.transaction.decisions.by_command import DECIDERS
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER, Placed, Prepared
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half, first_row


def test_every_command_has_a_decider() -> None:
    assert set(DECIDERS) == set(typing.get_args(commands.Command))


def test_every_record_can_be_applied_and_has_a_tag_of_its_own() -> None:
    kinds = typing.get_args(records.Record)
    core = Transactions(MemoryTable(), CheckPolicy(), copy_after_ms=0)
    assert set(core.appliers) == set(kinds)
    tags = [kind.__struct_config__.tag for kind in kinds]
    assert sorted(tags) == list(range(1, len(kinds) + 1))


def test_a_row_tells_the_first_row_of_its_request() -> None:
    assert first_row(7, FIRST | 3) == 7
    assert first_row(9, 2) == 7


@pytest.mark.parametrize(
    ("state", "next_at_ms", "is_needed"),
    [
        (State.PREPARED, 5, True),
        (State.PREPARED, NEVER, True),
        (State.PARKED, NEVER, True),
        (State.ROLLED_BACK, NEVER, False),
        # Visible, or waiting until it is due.
        (State.COMMITTED, NEVER, False),
        (State.COMMITTED, 5, True),
    ],
)
def test_a_row_is_needed_until_it_is_visible_or_rolled_back(
    state: State,
    next_at_ms: int,
    is_needed: bool,  # noqa: FBT001 - a column of the table
) -> None:
    half = Half(
        half_offset=0,
        log_offset=0,
        location=0,
        size=1,
        crc=0,
        stored_at_ms=0,
        origin=0,
        queue=0,
        tags=0,
        part=FIRST | 1,
        state=state,
        checks_sent=0,
        next_at_ms=next_at_ms,
        op_offset=-1,
    )
    assert half.is_needed is is_needed


def story() -> list[MemoryFrame]:
    """Frames of nearly every kind of command."""
    engine = MemoryEngine()
    engine.append(message(b"ordinary"))
    engine.prepare("t", message(b"a"), message(b"b", deliver_after_ms=1_000), number=0)
    engine.prepare("t", message(b"c", queue_id=1), number=1)
    engine.prepare("attempt", message(b"d"), number=0, bulk=True)
    engine.prepare("attempt", message(b"e"), number=1, bulk=True)
    engine.prepare("parked", message(b"f"))
    engine.append(message(b"later", deliver_at_ms=engine.clock.now_ms() + 1_000))
    engine.check_sent(0)
    engine.park(0)
    engine.resume(0)
    engine.submit(Carry(first=0))
    engine.park(5)
    engine.commit(2)
    claim = AttemptClaim(transaction_id="attempt", last_number=1, rows=2)
    engine.submit(
        DecideBatch(app_id="app", query_id="q", batch_id=0, attempts=(claim,), by="driver")
    )
    engine.clock.advance(ms=1_000)
    engine.release_due()
    return engine.frames


def applied(frames: list[MemoryFrame]) -> MemoryEngine:
    engine = MemoryEngine()
    for frame in frames:
        engine.log.take(frame)
    engine.apply(frames)
    return engine


def facts(engine: MemoryEngine) -> tuple[object, ...]:
    core = engine.core
    small = (core.queue_ends, core.parts, core.heads, core.delays, core.resumed_at_ms)
    return (dict(engine.table.rows), *[repr(fact) for fact in small])


def test_a_log_gives_the_same_state_again() -> None:
    frames = story()
    engine = applied(frames)
    states = [engine.state(row) for row in range(7)]
    assert states == [State.COMMITTED] * 5 + [State.PARKED, State.COMMITTED]
    assert engine.core.queue_ends == {0: 6, 1: 1}
    assert not engine.core.parts
    assert engine.core.heads == engine.core.delays == {}
    # Records do not contain the messages, so only the engine that wrote them can show them.
    assert engine.queues == {}


@pytest.mark.parametrize("start", range(len(story())))
def test_the_rest_of_a_log_on_top_of_its_end_changes_nothing(start: int) -> None:
    frames = story()
    engine = applied(frames)
    end = facts(engine)
    engine.apply(frames[start:])
    assert facts(engine) == end


def test_a_part_whose_head_is_not_in_the_log_any_more_waits_for_the_record_that_restores_it() -> (
    None
):
    """The head was carried forward, so its second part comes first in the log that is left."""
    table = MemoryTable()
    table.end = 5
    core = Transactions(table, CheckPolicy(), copy_after_ms=0)
    prepared = Prepared(
        first=5,
        head=3,
        origin=0,
        transaction_id="t",
        number=1,
        next_check_at_ms=0,
        deliver_after_ms=[],
        placed=Placed([0], [100], [0], [0]),
    )
    core.apply(prepared, Where(1_000, 1_044, 0))
    assert core.head_of(5) == 3
    assert core.ranges_of(3) == []


def test_a_transaction_that_is_gone_has_no_rows() -> None:
    core = Transactions(MemoryTable(), CheckPolicy(), copy_after_ms=0)
    assert core.ranges_of(3) == []
