"""Consume queues: entries in order, in files after a checkpoint, found by offset and by time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import groupby

import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.queue.consume_queue import (
    ENTRY_BYTES,
    ConsumeQueue,
    EntryColumns,
    QueueEntry,
    write_tails,
)
from escrowmq.store.queue.queue_files import FILE_ENTRIES, OpenFiles
from escrowmq.testing.faulty_disk import FaultyDisk
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.records import NamedQueue

FIRST_FILE = f"consumequeue/00000007.{0:020d}"


def entry(number: int, *, log_offset: int | None = None, at_ms: int | None = None) -> QueueEntry:
    return QueueEntry(
        log_offset=10_000 + 100 * number if log_offset is None else log_offset,
        visible_at_ms=number // 2 if at_ms is None else at_ms,
        size=100,
        tags=-number,
        crc=number,
    )


def add(queue: ConsumeQueue, first: int, entries: Iterable[QueueEntry]) -> None:
    """Append one by one, or extend with columns where several entries have the same time."""
    for at_ms, group in groupby(entries, key=lambda one: one.visible_at_ms):
        together = list(group)
        if len(together) == 1:
            queue.append(first, together[0])
        else:
            columns = EntryColumns(
                log_offsets=array("q", [one.log_offset for one in together]),
                sizes=array("I", [one.size for one in together]),
                tags=array("i", [one.tags for one in together]),
                crcs=array("I", [one.crc for one in together]),
                visible_at_ms=array("q", [at_ms] * len(together)),
            )
            queue.extend(first, columns)
        first += len(together)


def numbered(first: int, count: int) -> list[QueueEntry]:
    """Entries of which two become visible at each instant."""
    return [entry(number) for number in range(first, first + count)]


def made(disk: FaultyDisk) -> ConsumeQueue:
    disk.make_directory("consumequeue")
    return ConsumeQueue(disk, OpenFiles(disk), NamedQueue(7, "orders", 3))


def file_all(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    """Write the queue's tail to files, as a checkpoint does."""
    tail = queue.tail()
    assert tail is not None
    write_tails(disk, [tail])
    queue.install(tail)


@pytest.fixture
def disk() -> FaultyDisk:
    made_up = FaultyDisk()
    made_up.make_directory("consumequeue")
    return made_up


@pytest.fixture
def queue(disk: FaultyDisk) -> ConsumeQueue:
    return made(disk)


# Entries


def test_entries_are_read_as_they_were_added(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 3))
    add(queue, 3, numbered(3, 2))
    assert (queue.start, queue.end, queue.filed) == (0, 5, 0)
    assert queue.entries(0, 100) == [entry(number) for number in range(5)]
    assert queue.entries(2, 2) == [entry(2), entry(3)]
    assert queue.entries(5, 1) == []


def test_a_gap_is_our_own_mistake(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 1))
    with pytest.raises(AssertionError, match="in order"):
        add(queue, 2, numbered(2, 1))


def test_adding_an_entry_twice_is_our_own_mistake(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 2))
    with pytest.raises(AssertionError, match="only deleted entries"):
        add(queue, 1, numbered(1, 2))


def test_entries_are_the_same_in_memory_in_files_and_across_both(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, numbered(0, 4))
    file_all(disk, queue)
    add(queue, 4, numbered(4, 3))
    assert (queue.filed, queue.end) == (4, 7)
    assert queue.entries(0, 4) == [entry(number) for number in range(4)]
    assert queue.entries(2, 4) == [entry(number) for number in range(2, 6)]
    assert queue.entries(5, 9) == [entry(5), entry(6)]


def test_a_tail_is_what_is_in_no_file_yet(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    assert queue.tail() is None
    add(queue, 0, numbered(0, 4))
    file_all(disk, queue)
    assert queue.tail() is None


def test_entries_added_while_a_tail_is_written_stay_in_memory(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, numbered(0, 2))
    tail = queue.tail()
    assert tail is not None
    add(queue, 2, numbered(2, 2))
    write_tails(disk, [tail])
    add(queue, 4, numbered(4, 1))
    queue.install(tail)
    assert (queue.filed, queue.end) == (2, 5)
    assert queue.entries(0, 9) == [entry(number) for number in range(5)]
    file_all(disk, queue)
    assert queue.entries(0, 9) == [entry(number) for number in range(5)]


def test_filed_entries_survive_a_power_cut(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 4))
    file_all(disk, queue)
    again = made(disk.crash(nothing_survives))
    again.open(0, 4)
    assert again.entries(0, 9) == [entry(number) for number in range(4)]


def test_a_queue_opened_at_a_checkpoint_forgets_what_came_after(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, numbered(0, 6))
    file_all(disk, queue)
    again = made(disk)
    again.open(1, 4)
    assert again.entries(1, 100) == [entry(1), entry(2), entry(3)]
    add(again, 4, numbered(40, 2))
    file_all(disk, again)
    assert again.entries(3, 100) == [entry(3), entry(40), entry(41)]


def test_entries_cross_from_file_to_file(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    queue.begin_at(FILE_ENTRIES - 2)
    add(queue, FILE_ENTRIES - 2, numbered(0, 5))
    file_all(disk, queue)
    assert disk.list("consumequeue") == [f"00000007.{at:020d}" for at in (0, FILE_ENTRIES)]
    assert queue.entries(FILE_ENTRIES - 2, 9) == [entry(number) for number in range(5)]
    again = made(disk)
    again.open(FILE_ENTRIES - 2, FILE_ENTRIES + 3)
    assert again.entries(FILE_ENTRIES - 1, 3) == [entry(1), entry(2), entry(3)]


def test_rows_are_the_same_as_entries(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    first = FILE_ENTRIES - 2
    queue.begin_at(first)
    add(queue, first, numbered(0, 5))
    file_all(disk, queue)
    add(queue, first + 5, numbered(5, 2))
    for offset in range(first, first + 8):
        for count in (0, 1, 3, 9):
            rows = queue.rows(offset, count)
            found = [QueueEntry(*row.item()[:5]) for row in rows]
            assert found == queue.entries(offset, count)


# Deleted entries


def test_the_time_of_an_entry_is_0_if_there_is_none(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 4))
    assert [queue.at_ms(offset) for offset in (-1, 0, 1, 2, 3, 4)] == [0, 0, 0, 1, 1, 0]


def test_a_queue_that_begins_later_passes_over_deleted_entries(queue: ConsumeQueue) -> None:
    """A replay of the log from its start brings entries below the queue's start again."""
    queue.begin_at(5)
    add(queue, 0, numbered(0, 3))
    assert (queue.start, queue.end) == (5, 5)
    add(queue, 3, numbered(3, 4))
    assert (queue.start, queue.end) == (5, 7)
    add(queue, 7, numbered(7, 1))
    assert queue.entries(5, 9) == [entry(5), entry(6), entry(7)]


def test_entries_up_to_the_last_deleted_one_are_passed_over_whole(queue: ConsumeQueue) -> None:
    queue.begin_at(5)
    add(queue, 3, numbered(3, 2))
    assert (queue.start, queue.end, queue.tail()) == (5, 5, None)
    add(queue, 5, numbered(5, 1))
    assert queue.entries(5, 1) == [entry(5)]


# By time


@pytest.mark.parametrize("is_filed", [False, True])
@pytest.mark.parametrize(
    ("at_ms", "offset"),
    [
        (0, 0),  # before all
        (10, 0),  # the first
        (11, 1),
        (20, 1),  # the first of equal times
        (21, 4),
        (40, 5),  # the last
        (41, 6),  # after all
    ],
)
def test_the_first_entry_at_or_after_a_time_is_found(
    disk: FaultyDisk, queue: ConsumeQueue, at_ms: int, offset: int, *, is_filed: bool
) -> None:
    times = [10, 20, 20, 20, 30, 40]
    add(queue, 0, [entry(i, at_ms=at) for i, at in enumerate(times)])
    if is_filed:
        file_all(disk, queue)
    assert queue.offset_at(at_ms) == offset


def test_a_search_by_time_sees_no_deleted_entries(queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 6))
    queue.forget_below(3)
    assert queue.offset_at(0) == 3
    assert queue.offset_at(2) == 4


def test_an_empty_queue_has_nothing_at_any_time(queue: ConsumeQueue) -> None:
    assert queue.offset_at(0) == 0
    queue.begin_at(9)
    assert queue.offset_at(0) == 9


# By place


def test_the_first_entry_that_points_somewhere_is_found(
    disk: FaultyDisk, queue: ConsumeQueue
) -> None:
    add(queue, 0, [entry(i, log_offset=i % 5_000, at_ms=7) for i in range(8_000)])
    for filed in range(2):
        assert queue.find(4_999, 0) == 4_999
        assert queue.find(2_000, 0) == 2_000
        assert queue.find(2_000, 2_001) == 7_000
        assert queue.find(4_999, 5_000) is None
        assert queue.find(9_999, 0) is None
        assert queue.find(2_000, 8_000) is None
        assert queue.find(2_000, 1_000, limit=1_001) == 2_000
        assert queue.find(2_000, 1_000, limit=1_000) is None
        if not filed:
            file_all(disk, queue)
            add(queue, 8_000, [entry(8_000, log_offset=9_000, at_ms=8)])
    assert queue.find(9_000, 7_990) == 8_000
    assert queue.find(9_000, 8_000) == 8_000


# Damage


def test_a_damaged_entry_is_never_served(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 4))
    file_all(disk, queue)
    disk.flip_bit(FIRST_FILE, 2 * ENTRY_BYTES + 5, 1)
    assert queue.entries(0, 2) == [entry(0), entry(1)]
    with pytest.raises(StoreCorrupt) as refused:
        queue.entries(1, 3)
    assert refused.value.code == "consume_queue_damaged"
    assert refused.value.fields == {"path": FIRST_FILE, "at": 2 * ENTRY_BYTES}


def test_a_file_that_is_missing_or_short_is_damage(disk: FaultyDisk, queue: ConsumeQueue) -> None:
    add(queue, 0, numbered(0, 4))
    file_all(disk, queue)
    with pytest.raises(StoreCorrupt) as short:
        made(disk).open(0, 5)
    assert short.value.fields == {"path": FIRST_FILE, "at": 0}
    with pytest.raises(StoreCorrupt) as missing:
        made(disk).open(0, FILE_ENTRIES + 1)
    assert missing.value.fields["path"] == f"consumequeue/00000007.{FILE_ENTRIES:020d}"


def test_an_empty_queue_needs_no_file(disk: FaultyDisk) -> None:
    again = made(disk)
    again.open(7, 7)
    add(again, 7, numbered(7, 1))
    assert again.entries(7, 1) == [entry(7)]
