"""Entries that a queue forgets when retention deletes the log that they point into."""

from __future__ import annotations

import pytest

from escrowmq.store.queue.consume_queue import ConsumeQueue
from escrowmq.store.queue.queue_files import FILE_ENTRIES
from escrowmq.testing.faulty_disk import FaultyDisk
from tests.unit.store.test_consume_queue import add, entry, file_all, made, numbered


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def queue(disk: FaultyDisk) -> ConsumeQueue:
    return made(disk)


def test_a_start_never_goes_back(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 6))
    queue.forget_below(4)
    queue.forget_below(2)
    assert queue.start == 4


def remove_files(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    """Delete the files that hold only forgotten entries, as retention does."""
    if queue.may_have_forgotten_files:
        paths = queue.forgotten_files()
        for file in queue._files.release(paths):
            file.close()
        for path in paths:
            disk.remove(path)
        queue.note_files_gone()
    assert not queue.may_have_forgotten_files


def test_files_go_only_when_all_their_entries_are_forgotten(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    queue.begin_at(FILE_ENTRIES - 2)
    add(queue, FILE_ENTRIES - 2, numbered(0, 5))
    file_all(disk, queue)
    queue.entries(FILE_ENTRIES - 1, 1)
    queue.forget_below(FILE_ENTRIES - 1)
    remove_files(disk, queue)
    assert len(disk.list("consumequeue")) == 2
    queue.forget_below(FILE_ENTRIES)
    remove_files(disk, queue)
    assert disk.list("consumequeue") == [f"00000007.{FILE_ENTRIES:020d}"]
    assert queue.entries(FILE_ENTRIES, 1) == [entry(2)]


def test_a_queue_that_was_never_filed_has_no_files_to_remove(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, numbered(0, 2))
    queue.forget_below(2)
    remove_files(disk, queue)
    assert (queue.start, queue.end) == (2, 2)


def test_a_strangers_file_is_left_alone(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 2))
    file_all(disk, queue)
    disk.open("consumequeue/notes.txt", create=True)
    disk.open("consumequeue/00000007.0", create=True)
    queue.begin_at(FILE_ENTRIES)
    remove_files(disk, queue)
    assert disk.list("consumequeue") == ["00000007.0", "notes.txt"]


# One past the highest entry into a deleted prefix of the log


def test_the_queue_starts_after_the_highest_entry_that_points_into_the_prefix(
    queue: ConsumeQueue,
) -> None:
    offsets = [100, 900, 200, 950, 999]
    add(queue, 0, [entry(i, log_offset=at) for i, at in enumerate(offsets)])
    assert queue.first_after(500, bound_ms=10) == 3
    assert queue.first_after(150, bound_ms=10) == 1
    assert queue.first_after(50, bound_ms=10) == 0
    assert queue.first_after(10_000, bound_ms=10) == 5


def test_entries_visible_after_the_bound_are_not_even_looked_at(queue: ConsumeQueue) -> None:
    add(queue, 0, [entry(i, log_offset=1) for i in range(6)])
    assert queue.first_after(500, bound_ms=1) == 4


def test_many_entries_are_looked_through(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, [entry(i, log_offset=i, at_ms=7) for i in range(10_000)])
    file_all(disk, queue)
    assert queue.first_after(9_000, bound_ms=7) == 9_000
