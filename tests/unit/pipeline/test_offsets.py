"""Offsets: a stream's position, lost ranges, and how much a batch and a task read."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.pipeline.source.offsets import (
    Loss,
    OffsetRange,
    QueueKey,
    QueueSlice,
    begun,
    from_json,
    losses,
    packed,
    readable,
    shared_out,
    task_rows,
    to_json,
)

A0 = QueueKey("a", "orders", 0)
A1 = QueueKey("a", "orders", 1)
B0 = QueueKey("b", "orders", 0)

keys = st.builds(QueueKey, st.sampled_from("ab"), st.sampled_from(["t", "u"]), st.integers(0, 3))


@given(st.dictionaries(keys, st.integers(0, 2**62)))
def test_a_checkpoint_brings_offsets_back(offsets: dict[QueueKey, int]) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


def test_offsets_are_kept_by_names() -> None:
    assert to_json({A1: 5, A0: 7}, ["b"]) == {"a": {"orders": {"0": 7, "1": 5}}, "b": {}}


def test_a_new_queue_is_read_from_its_first_message_and_a_new_broker_from_what_it_has() -> None:
    there = {A0: OffsetRange(3, 9), A1: OffsetRange(2, 4), B0: OffsetRange(5, 6)}
    assert begun(to_json({A0: 7}), there) == {A0: 7, A1: 0, B0: 5}
    assert begun(to_json({A0: 7}, ["b"]), there) == {A0: 7, A1: 0, B0: 0}


@pytest.mark.parametrize(
    ("start", "there", "is_lost"),
    [
        (3, OffsetRange(3, 9), False),
        (9, OffsetRange(3, 9), False),
        # Lost to retention, to a recreated store, and to a deleted topic.
        (2, OffsetRange(3, 9), True),
        (10, OffsetRange(3, 9), True),
        (0, None, True),
    ],
)
def test_a_position_that_cannot_be_continued_is_a_loss(
    start: int,
    there: OffsetRange | None,
    is_lost: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    found = losses({A0: start}, {} if there is None else {A0: there})
    assert found == ([Loss(A0, start, None, there)] if is_lost else [])


def test_a_loss_names_queue_offsets_and_the_way_out() -> None:
    error = Loss(A0, 2, 8, OffsetRange(3, 9)).error()
    assert error.code == "data_lost"
    assert "failOnDataLoss=false" in str(error)
    assert error.fields == {
        "broker": "a",
        "topic": "orders",
        "queue_id": 0,
        "start": 2,
        "end": 8,
        "there_start": 3,
        "there_end": 9,
    }
    assert "there_start" not in Loss(A0, 2, 8, None).facts()


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (4, 6, OffsetRange(4, 6)),
        (0, 6, OffsetRange(3, 6)),
        (4, 99, OffsetRange(4, 9)),
        (0, 2, OffsetRange(3, 3)),
        (20, 99, OffsetRange(20, 20)),
        # The queue was recreated, so its end is below the reader's position.
        (20, 5, OffsetRange(3, 5)),
    ],
)
def test_of_a_range_what_is_there_can_be_read(start: int, end: int, expected: OffsetRange) -> None:
    assert readable(start, end, OffsetRange(3, 9)) == expected


backlogs = st.dictionaries(keys, st.tuples(st.integers(0, 50), st.integers(0, 1_000)))


@given(backlogs, st.integers(1, 500))
def test_a_batch_has_as_many_rows_as_allowed_and_no_more(
    held: dict[QueueKey, tuple[int, int]], rows_max: int
) -> None:
    starts = {key: start for key, (start, _) in held.items()}
    ends = {key: start + backlog for key, (start, backlog) in held.items()}
    cut = shared_out(starts, ends, rows_max)
    assert cut.keys() == ends.keys()
    assert all(starts[key] <= cut[key] <= ends[key] for key in ends)
    total = sum(backlog for _, backlog in held.values())
    assert sum(cut[key] - starts[key] for key in cut) == min(total, rows_max)


def test_a_small_queue_beside_a_large_one_is_read_too() -> None:
    starts, end = {A0: 0, A1: 0}, {A0: 1_000_000, A1: 3}
    for _ in range(200):
        starts = shared_out(starts, end, 10_000)
    assert starts == end
    # Each queue gets its share of a batch, so a small queue ends no later than a large one.
    assert shared_out({A0: 0, A1: 0}, {A0: 100, A1: 100}, 10) == {A0: 5, A1: 5}


@st.composite
def ranges(draw: st.DrawFn) -> list[QueueSlice]:
    sizes = draw(st.lists(st.tuples(keys, st.integers(0, 50), st.integers(0, 40))))
    return [QueueSlice(key, start, start + rows) for key, start, rows in sizes]


@given(ranges(), st.integers(1, 30))
def test_tasks_read_all_of_it_once(wanted: list[QueueSlice], rows_max: int) -> None:
    tasks = list(packed(wanted, rows_max))
    # The tasks keep the order of each queue.
    assert _rows(one for task in tasks for one in task) == _rows(wanted)
    for task in tasks:
        assert len({one.queue.broker for one in task}) == 1
        assert 0 < sum(one.end - one.start for one in task) <= rows_max


def _rows(ranges: Iterable[QueueSlice]) -> dict[QueueKey, list[int]]:
    rows: dict[QueueKey, list[int]] = {}
    for one in ranges:
        if one.start < one.end:
            rows.setdefault(one.queue, []).extend(range(one.start, one.end))
    return rows


def test_a_task_has_its_part_of_each_queue_of_a_topic() -> None:
    """A topic's queues fill together, so a task reads rows that are close together in the log."""
    wanted = [QueueSlice(A0, 0, 100), QueueSlice(A1, 50, 100), QueueSlice(B0, 0, 60)]
    assert list(packed(wanted, 75)) == [
        (QueueSlice(A0, 0, 50), QueueSlice(A1, 50, 75)),
        (QueueSlice(A0, 50, 100), QueueSlice(A1, 75, 100)),
        (QueueSlice(B0, 0, 60),),
    ]


@pytest.mark.parametrize(
    ("rows", "tasks"),
    [(1, 1), (100_000, 1), (100_001, 2), (2_000_001, 8), (4_000_000, 8), (40_000_000, 80)],
)
def test_a_read_is_cut_into_a_few_tasks_until_each_is_long(rows: int, tasks: int) -> None:
    assert len(list(packed([QueueSlice(A0, 7, 7 + rows)], task_rows(rows)))) == tasks


def test_small_queues_share_a_task() -> None:
    wanted = [QueueSlice(A0._replace(queue_id=number), 0, 3) for number in range(10)]
    assert [len(task) for task in packed(wanted, 100)] == [10]
