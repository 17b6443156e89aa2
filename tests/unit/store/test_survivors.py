"""Rows that outlived their chunk stay findable, and are dropped only when no longer needed."""

from __future__ import annotations

import msgspec
import pytest

from escrowmq.store.table.survivors import Survivors
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, Half


def row(number: int, **fields: object) -> Half:
    half = Half(
        half_offset=number,
        log_offset=100 * number,
        location=100 * number,
        size=100,
        crc=1,
        stored_at_ms=5,
        origin=0,
        queue=0,
        tags=0,
        part=FIRST | 1,
        state=State.PREPARED,
        checks_sent=0,
        next_at_ms=50,
        op_offset=-1,
    )
    return msgspec.structs.replace(half, **fields)


@pytest.mark.parametrize(
    ("state", "next_at_ms", "needed"),
    [
        (State.PREPARED, 50, True),
        (State.PREPARED, NEVER, True),  # not the head of its transaction
        (State.PARKED, NEVER, True),
        (State.COMMITTED, 50, True),  # visible later
        (State.COMMITTED, NEVER, False),
        (State.ROLLED_BACK, NEVER, False),
    ],
)
def test_messages_that_can_still_become_visible_are_needed(
    state: State, next_at_ms: int, *, needed: bool
) -> None:
    assert row(1, state=state, next_at_ms=next_at_ms).is_needed is needed


def test_rows_are_found_by_every_name() -> None:
    kept = Survivors()
    kept.keep(row(3), 77)
    kept.keep(row(9), 77)
    kept.keep(row(5), 88)
    assert kept.rows[3] == row(3)
    assert kept.row_at(500) == 5
    assert kept.row_at(501) is None
    assert kept.rows_by_hash == {77: [3, 9], 88: [5]}


def test_a_row_kept_again_is_replaced_and_found_once() -> None:
    kept = Survivors()
    kept.keep(row(3), 77)
    kept.keep(row(3, location=9_000), 77)
    assert kept.rows == {3: row(3, location=9_000)}
    assert kept.rows_by_hash == {77: [3]}


def test_only_rows_that_are_here_are_changed() -> None:
    kept = Survivors()
    kept.keep(row(3), 77)
    kept.to_save()
    kept.change(4, checks_sent=1)
    assert kept.to_save() is None
    kept.change(3, checks_sent=2, next_at_ms=60)
    assert kept.rows == {3: row(3, checks_sent=2, next_at_ms=60)}


def test_they_are_saved_only_when_something_changed() -> None:
    kept = Survivors()
    assert kept.to_save() is None
    kept.keep(row(3), 77)
    saved = kept.to_save()
    assert saved is not None
    assert kept.to_save() is None
    again = Survivors()
    again.load(saved.survivors())
    assert again.rows == kept.rows
    assert again.rows_by_hash == kept.rows_by_hash
    assert again.to_save() is None, "what came from a file is in it"


def test_a_saved_state_does_not_change_before_it_is_written() -> None:
    kept = Survivors()
    for number in (3, 4):
        kept.keep(row(number), 77)
    saved = kept.to_save()
    assert saved is not None
    kept.change(3, checks_sent=2)
    kept.change(3, checks_sent=3)
    kept.keep(row(9), 88)
    kept.change(9, checks_sent=1)
    found = {one.half.half_offset: (one.half, one.id_hash) for one in saved.survivors()}
    assert found == {3: (row(3), 77), 4: (row(4), 77)}
    kept.saved()
    again = kept.to_save()
    assert again is not None
    assert [one.half.checks_sent for one in again.survivors()] == [3, 0, 1]


def test_rows_go_when_they_are_decided_and_their_chunk_and_decision_are_deleted() -> None:
    decided = {"state": State.ROLLED_BACK, "next_at_ms": NEVER}
    kept = Survivors()
    kept.keep(row(3, op_offset=900, **decided), 77)
    kept.keep(row(4), 77)
    kept.keep(row(5, op_offset=2_000, **decided), 77)
    kept.keep(row(9, op_offset=900, **decided), 88)
    kept.keep(row(6, op_offset=900, location=2_000, **decided), 77)
    kept.to_save()
    kept.saved()
    kept.forget(list(kept.rows), 9, 1_000)
    # Undecided; decided so late that the log still has the decision; in a chunk that still exists;
    # and one whose bytes were carried forward.
    assert list(kept.rows) == [4, 5, 9, 6]
    assert kept.row_at(300) is None
    assert kept.rows_by_hash == {77: [4, 5, 6], 88: [9]}
    assert kept.to_save() is not None
    kept.saved()
    kept.forget([*kept.rows, 77], 10, 2_001)
    assert list(kept.rows) == [4]
    assert kept.rows_by_hash == {77: [4]}
    kept.to_save()
    kept.saved()
    kept.forget([*kept.rows, 77], 10, 2_001)
    assert kept.to_save() is None
