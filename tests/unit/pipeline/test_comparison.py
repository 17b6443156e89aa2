"""The rules of the half/op comparison that need no Spark: checkpoints, pieces, the second look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from escrowmq.model.lineage import Epoch, Lineage, Sight
from escrowmq.pipeline.audit.arrays import COMMITTED, HALF, NONE, PARKED, ROLLED_BACK, UNDECIDED
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.compare.checkpoint import Checkpoints, ComparisonCheckpoint, Difference
from escrowmq.pipeline.compare.folding import CANDIDATE, whole_requests
from escrowmq.pipeline.compare.judging import judge
from escrowmq.pipeline.compare.looking import SecondLook, StoreRow
from escrowmq.pipeline.compare.state_stores import UndecidedRows, differing, judge_held
from escrowmq.pipeline.source.positions import to_keep

SIGHT = Sight(Lineage("store", (Epoch("e1", 0, 0),)), 100, 9)
#: Half messages from here on are new in the round.
NEW_FROM = 100


def checkpoint(*rows: tuple[int, ...], **fields: Any) -> ComparisonCheckpoint:  # noqa: ANN401
    kept = to_keep({"broker-a": 100}, {"broker-a": SIGHT}, {})["broker-a"]
    packed = np.array(list(rows), HALF).tobytes()
    return ComparisonCheckpoint(position=kept, half_end=9, known_from=0, open=packed, **fields)


def test_every_half_message_before_the_first_open_one_is_decided() -> None:
    assert checkpoint((3, 3, 1, 1, 0), (5, 5, 2, 2, 0)).decided_before == 3
    assert checkpoint().decided_before == 9
    assert checkpoint((7, 7, 1, 1, 0), left_out=2, left_out_from=4).decided_before == 4


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path))
    assert kept.load("store") == (None, "first_round")
    kept.save("store", checkpoint((3, 3, 1, 1, 0)))
    assert kept.load("store") == (checkpoint((3, 3, 1, 1, 0)), "")
    assert kept.load("other") == (None, "first_round")


@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, at: int) -> None:
    kept = Checkpoints(str(tmp_path))
    kept.save("store", checkpoint())
    (path,) = (tmp_path / "comparison").iterdir()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert kept.load("store") == (None, "checkpoint_damaged")


def test_a_checkpoint_of_another_version_is_not_used(tmp_path: Path) -> None:
    kept = Checkpoints(str(tmp_path))
    kept.save("store", msgspec.structs.replace(checkpoint(), version=2))
    assert kept.load("store") == (None, "checkpoint_damaged")


def test_requests_that_ranges_cut_are_whole_again() -> None:
    pieces = np.array(
        [
            # first, head, count, is a copy, count of the whole request
            (10, 8, 5, 0, 0),
            (8, 8, 2, 0, 7),
            (20, 20, 1, 1, 1),
            # The rest of a request whose first piece is decided.
            (25, 23, 2, 0, 0),
        ],
        CANDIDATE,
    )
    assert whole_requests(pieces).tolist() == [(8, 8, 7, 7, 0), (20, 20, 1, 1, 1)]
    assert whole_requests(pieces[:0]).tolist() == []


def candidate(recorded: int, *, finding: str = "", **fields: int) -> Difference:
    given = {"half_offset": 120, "head": 120, "message_count": 1, "listed": NONE, **fields}
    name = finding or FindingName.HALF_NOT_IN_TABLE.value
    return Difference(finding=name, recorded=recorded, found_at_ms=0, **given)


def judged(one: Difference, row: StoreRow | None, *, went_on: tuple[int, ...] = ()) -> str | None:
    rows = {} if row is None else {one.half_offset: row}
    look = SecondLook(rows, frozenset(went_on), half_start=50)
    found = judge(one, look, half_start=NEW_FROM)
    return None if found is None else found.finding


OPEN, WAITS = StoreRow(UNDECIDED, 1), StoreRow(PARKED, 1)
DONE, UNDONE = StoreRow(COMMITTED, 1), StoreRow(ROLLED_BACK, 1)


@pytest.mark.parametrize(
    ("recorded", "row", "found"),
    [
        (UNDECIDED, OPEN, None),
        (UNDECIDED, WAITS, None),
        (UNDECIDED, DONE, FindingName.DECISION_WITHOUT_OP),
        (UNDECIDED, None, FindingName.HALF_NOT_IN_TABLE),
        (COMMITTED, DONE, None),
        (COMMITTED, UNDONE, FindingName.TABLE_CONTRADICTS),
        (COMMITTED, WAITS, FindingName.DECISION_FORGOTTEN),
        (ROLLED_BACK, None, FindingName.HALF_NOT_IN_TABLE),
    ],
)
def test_records_and_store_are_compared_state_by_state(
    recorded: int, row: StoreRow | None, found: FindingName | None
) -> None:
    assert judged(candidate(recorded), row) == found


def test_what_was_decided_since_the_round_is_no_difference() -> None:
    assert judged(candidate(UNDECIDED), DONE, went_on=(120,)) is None
    assert judged(candidate(UNDECIDED, head=110), DONE, went_on=(110,)) is None


def test_of_an_undecided_transaction_only_the_head_has_a_row() -> None:
    assert judged(candidate(UNDECIDED, head=110), None) is None
    assert judged(candidate(UNDECIDED, head=110), OPEN) == FindingName.TABLE_SPLITS


def test_a_row_that_went_with_retention_is_no_difference() -> None:
    assert judged(candidate(COMMITTED, half_offset=40, head=40), None) is None


def test_an_old_row_that_is_open_again_has_forgotten_its_decision() -> None:
    row = FindingName.ROW_WITHOUT_HALF.value
    old = candidate(NONE, finding=row, half_offset=60, head=NONE)
    assert judged(old, OPEN) == FindingName.DECISION_FORGOTTEN
    assert judged(old, None) is None
    kept = candidate(NONE, finding="decision_forgotten", half_offset=60, head=NONE)
    assert judged(kept, OPEN) == FindingName.DECISION_FORGOTTEN
    assert judged(kept, DONE) is None
    assert judged(candidate(NONE, finding=row, head=NONE), DONE) == FindingName.ROW_WITHOUT_HALF


def test_a_second_decision_of_an_older_transaction_is_found() -> None:
    op = FindingName.OP_WITHOUT_HALF.value
    assert judged(candidate(NONE, finding=op, half_offset=60), None) == FindingName.DECIDED_TWICE
    assert judged(candidate(NONE, finding=op), None) == FindingName.OP_WITHOUT_HALF


def test_a_count_differs_only_while_the_store_still_has_that_count() -> None:
    counted = candidate(COMMITTED, finding=FindingName.COUNT_DIFFERS.value, listed=3)
    assert judged(counted, StoreRow(COMMITTED, 3)) == FindingName.COUNT_DIFFERS
    assert judged(counted, DONE) is None


def test_heads_on_one_side_only_are_candidates_below_the_end() -> None:
    rows = np.array([(0, 0, 1, 1, 0), (3, 3, 2, 2, 0), (5, 0, 1, 1, 0), (9, 9, 1, 1, 0)], HALF)
    # Row 3 is there, but does not stand for its transaction.
    held = UndecidedRows(np.array([0, 3, 4, 5, 7]), np.array([True, False, False, False, True]))
    found = differing(rows, held, end=9, found_at_ms=5)
    assert [(one.finding, one.half_offset, one.message_count) for one in found] == [
        (FindingName.STATE_STORE_LACKS, 3, 2),
        (FindingName.STATE_STORE_KEEPS, 7, 1),
    ]
    alone = differing(
        rows[:0], UndecidedRows(np.array([2]), np.array([True])), end=9, found_at_ms=5
    )
    assert [one.half_offset for one in alone] == [2]


@pytest.mark.parametrize(
    ("finding", "row", "went_on", "recorded"),
    [
        (FindingName.STATE_STORE_LACKS, StoreRow(UNDECIDED, 1), (), UNDECIDED),
        (FindingName.STATE_STORE_LACKS, StoreRow(PARKED, 1), (), UNDECIDED),
        # It was decided after the records that the round has read.
        (FindingName.STATE_STORE_LACKS, StoreRow(UNDECIDED, 1), (120,), None),
        # The state table contradicts the records, which is another finding.
        (FindingName.STATE_STORE_LACKS, StoreRow(COMMITTED, 1), (), None),
        (FindingName.STATE_STORE_LACKS, None, (), None),
        (FindingName.STATE_STORE_KEEPS, StoreRow(COMMITTED, 1), (), COMMITTED),
        (FindingName.STATE_STORE_KEEPS, None, (), NONE),
        (FindingName.STATE_STORE_KEEPS, StoreRow(UNDECIDED, 1), (), None),
    ],
)
def test_a_state_store_differs_if_the_state_table_contradicts_it(
    finding: FindingName, row: StoreRow | None, went_on: tuple[int, ...], recorded: int | None
) -> None:
    is_lacking = finding is FindingName.STATE_STORE_LACKS
    told = candidate(UNDECIDED if is_lacking else NONE, finding=finding.value)
    rows = {} if row is None else {told.half_offset: row}
    found = judge_held(told, SecondLook(rows, frozenset(went_on), 0))
    assert (None if found is None else found.recorded) == recorded
