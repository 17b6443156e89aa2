"""A chunk keeps rows as columns in memory, with the same values as one object per row."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import msgspec
import numpy as np
import pytest

from escrowmq.store.table.chunk import Chunk
from escrowmq.transaction.core import Where
from escrowmq.transaction.records import NEVER, Placed
from escrowmq.transaction.states import State
from escrowmq.transaction.table import FIRST, NewRows

if TYPE_CHECKING:
    from escrowmq.store.disk.rows import Rows

BASE = 16


def ops(*decisions: tuple[int, int, int]) -> tuple[Rows, Rows, Rows]:
    """First row, number of rows and op offset of each decision, as columns."""
    first, count, offset = np.array(decisions, dtype=np.int64).reshape(-1, 3).T
    return first, count, offset


NO_OPS = ops()


def request(first: int, count: int = 1, *, transaction_id: str = "t") -> NewRows:
    """Rows of 100 bytes each, with the row's number in every field."""
    rows = range(first, first + count)
    return NewRows(
        first=first,
        origin=first % 7,
        state=State.PREPARED,
        where=Where(frame=100 * first, messages=100 * first, at_ms=1_000 + first),
        next_at_ms=[5_000 + row for row in rows],
        transaction_id=transaction_id,
        placed=Placed(
            queues=[row % 3 for row in rows],
            sizes=[100] * count,
            crcs=[2**32 - 1 - row for row in rows],
            tags=[-row for row in rows],
        ),
    )


def insert(chunk: Chunk, rows: NewRows) -> None:
    count = len(rows.placed.sizes)
    if count == 1:
        chunk.insert_one(rows, crc32(rows.transaction_id.encode()))
    else:
        chunk.insert_many(rows, 0, count)


@pytest.fixture
def chunk() -> Chunk:
    """Rows 16 to 21: one alone, a request of three, two alone."""
    chunk = Chunk(BASE, 8)
    insert(chunk, request(16, transaction_id="a"))
    insert(chunk, request(17, 3, transaction_id="b"))
    insert(chunk, request(20, transaction_id="c"))
    insert(chunk, request(21, transaction_id="a"))
    return chunk


def columns(rows: Rows, *names: str) -> list[tuple[int, ...]]:
    return [tuple(int(row[name]) for name in names) for row in rows]


def test_a_request_of_many_rows_is_as_if_each_came_alone(chunk: Chunk) -> None:
    rows = chunk.frozen().to_rows(NO_OPS)
    assert chunk.count == 6
    assert columns(rows, "log_offset", "location", "size", "crc") == [
        (100 * row, 100 * row, 100, 2**32 - 1 - row) for row in range(16, 22)
    ]
    assert columns(rows, "queue", "tags", "state") == [
        (row % 3, -row, State.PREPARED) for row in range(16, 22)
    ]
    assert rows["stored_at_ms"].tolist() == [1016, 1017, 1017, 1017, 1020, 1021]
    assert rows["origin"].tolist() == [2, 3, 3, 3, 6, 0]
    hashes = [crc32(one.encode()) for one in "abbbca"]
    assert rows["id_hash"].tolist() == hashes


def test_the_first_row_of_a_request_counts_it_and_the_others_point_back(chunk: Chunk) -> None:
    assert list(chunk.part[:6]) == [FIRST | 1, FIRST | 3, 1, 2, FIRST | 1, FIRST | 1]


def test_a_request_may_begin_in_one_chunk_and_end_in_the_next() -> None:
    rows = request(21, 5)
    first, second = Chunk(16, 8), Chunk(24, 8)
    first.count = 5
    first.insert_many(rows, 0, 3)
    second.insert_many(rows, 3, 2)
    assert list(first.part[5:8]) == [FIRST | 5, 1, 2]
    assert list(second.part[:2]) == [3, 4]
    assert list(second.log_offset[:2]) == [2_400, 2_500]
    assert (first.needed, second.needed) == (3, 2)


# Needed rows


def test_undecided_parked_and_waiting_rows_are_needed(chunk: Chunk) -> None:
    assert chunk.needed == 6
    chunk.set_state(0, 1, State.PARKED, decided=False)
    assert chunk.needed == 6
    chunk.set_state(4, 5, State.COMMITTED, decided=True)
    assert chunk.needed == 5
    chunk.set_state(1, 4, State.ROLLED_BACK, decided=True)
    assert chunk.needed == 2
    # Committed, but not yet visible.
    chunk.set_next(4, 9_000)
    assert chunk.needed == 3
    chunk.set_next(4, NEVER)
    assert chunk.needed == 2


def test_setting_a_state_again_changes_nothing(chunk: Chunk) -> None:
    for _ in range(2):
        chunk.set_state(1, 4, State.COMMITTED, decided=True)
        assert chunk.needed == 3
        chunk.set_state(0, 1, State.COMMITTED, decided=True)
        chunk.set_state(0, 1, State.COMMITTED, decided=True)
        assert chunk.needed == 2
        chunk.set_state(0, 1, State.PREPARED, decided=False)


def needed_rows(chunk: Chunk, log_offset: int) -> list[int]:
    return [chunk.base + at for at in chunk.needed_below(log_offset).tolist()]


def test_needed_rows_are_those_whose_bytes_lie_below(chunk: Chunk) -> None:
    assert needed_rows(chunk, 1_600) == []
    assert needed_rows(chunk, 1_801) == [16, 17, 18]
    chunk.set_state(1, 4, State.COMMITTED, decided=True)
    assert needed_rows(chunk, NEVER) == [16, 20, 21]
    chunk.move(4, 50_000)
    assert needed_rows(chunk, 50_000) == [16, 21]
    assert needed_rows(chunk, 50_001) == [16, 20, 21]


# Searching


def test_rows_are_found_by_their_identity_in_the_log(chunk: Chunk) -> None:
    assert [chunk.row_at(100 * row) for row in range(16, 22)] == list(range(16, 22))
    for nothing in (0, 1_599, 1_601, 2_101, 2_200, 10**9):
        assert chunk.row_at(nothing) is None


def test_requests_are_found_by_the_hash_of_their_transaction_newest_first(chunk: Chunk) -> None:
    assert chunk.candidates(crc32(b"a")) == [21, 16]
    assert chunk.candidates(crc32(b"b")) == [17]
    assert chunk.candidates(crc32(b"z")) == []


def test_rows_are_due_at_their_time(chunk: Chunk) -> None:
    assert chunk.due(5_015, 10) == []
    assert chunk.due(5_017, 10) == [16, 17]
    assert chunk.due(9_999, 3) == [16, 17, 18]
    chunk.set_state(0, 4, State.COMMITTED, decided=True)
    assert chunk.due(5_019, 10) == []
    assert chunk.due(5_020, 10) == [20]


def test_a_scan_that_finds_nothing_is_not_repeated_before_the_next_row_is_due(
    chunk: Chunk,
) -> None:
    chunk.set_state(0, 4, State.COMMITTED, decided=True)
    assert chunk.due(5_019, 10) == []
    assert chunk.due_from_ms == 5_020
    chunk.set_next(5, 4_000)
    assert chunk.due(4_000, 10) == [21]


# Files


def test_a_chunk_comes_back_from_its_rows_as_it_was(chunk: Chunk) -> None:
    chunk.set_state(1, 4, State.ROLLED_BACK, decided=True)
    chunk.set_state(5, 6, State.PARKED, decided=False)
    chunk.checks_sent[4] = 255
    chunk.move(4, 50_000)
    again = Chunk(BASE, 8)
    again.load(chunk.frozen().to_rows(NO_OPS))
    assert (again.frozen().to_rows(NO_OPS) == chunk.frozen().to_rows(NO_OPS)).all()
    assert (again.count, again.needed, again.location(4)) == (6, 3, 50_000)
    assert again.due(5_016, 9) == [16]
    assert not again.is_dirty
    insert(again, request(22))
    assert again.is_dirty
    assert again.needed == 4


def test_rows_know_the_frame_that_decided_them_if_it_is_told(chunk: Chunk) -> None:
    """A decision may begin in the chunk before and end in the one after."""
    rows = chunk.frozen().to_rows(
        ops((10, 7, 700), (18, 1, 800), (21, 9, 900), (5, 1, 1), (40, 3, 2))
    )
    assert rows["op_offset"].tolist() == [700, -1, 800, -1, -1, 900]


def test_rows_before_the_first_one_are_not_there() -> None:
    """After a deleted prefix, the first known row may be in the middle of a chunk."""
    chunk = Chunk(BASE, 8)
    chunk.skipped = chunk.count = 3
    chunk.view("next_at_ms")[:] = NEVER
    insert(chunk, msgspec.structs.replace(request(19), transaction_id=""))
    insert(chunk, request(20))
    again = Chunk(BASE, 8)
    again.load(chunk.frozen().to_rows(NO_OPS))
    for one in (chunk, again):
        assert (one.count, one.skipped, one.needed) == (5, 3, 2)
        assert needed_rows(one, NEVER) == [19, 20]
        assert one.candidates(crc32(b"")) == [19]
        assert one.row_at(0) is None
        assert one.row_at(1_900) == 19
        assert one.due(NEVER - 1, 10) == [19, 20]
