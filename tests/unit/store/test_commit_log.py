"""The commit log: gathered, written, flushed; in segments, addressed by one running offset."""

from __future__ import annotations

import errno

import pytest

from escrowmq.model.errors import StoreCorrupt
from escrowmq.store.log.commit_log import (
    DIRECTORY,
    CommitLog,
    read_frames,
    remove_segments,
    segment_path,
)
from escrowmq.store.log.frames import close_frame, open_frame
from escrowmq.store.log.tail import open_segments
from escrowmq.testing.faulty_disk import DiskCall, FaultyDisk
from escrowmq.testing.journal import Create, FlushDirectory, Write
from escrowmq.testing.survivors import nothing_survives
from escrowmq.transaction.records import NamedQueue

SEED = 5
#: Frames of this size; four of them fit into one segment.
FRAME_BYTES = 1_000
SEGMENT_BYTES = 4_096


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.make_directory(DIRECTORY)
    return disk


@pytest.fixture
def log(disk: FaultyDisk) -> CommitLog:
    return CommitLog(disk, SEGMENT_BYTES)


def frame_at(log: CommitLog, size: int = FRAME_BYTES) -> bytes:
    """A valid frame of this size, padded with a name."""
    name = ""
    while True:
        frame = open_frame([])
        close_frame(frame, (NamedQueue(0, name, 0),), (log.end, log.end, 0), SEED)
        if len(frame) == size:
            return bytes(frame)
        name = str(log.end % 10) * (len(name) + size - len(frame))


def append(log: CommitLog, count: int = 1, size: int = FRAME_BYTES) -> None:
    for _ in range(count):
        log.append(frame_at(log, size), 1_000 + log.end)


def starts(log: CommitLog) -> list[int]:
    return [segment.start for segment in log.segments]


def reopened(disk: FaultyDisk) -> CommitLog:
    log = CommitLog(disk, SEGMENT_BYTES)
    open_segments(disk, log, 0)
    return log


# Gathering, writing, flushing


def test_nothing_reaches_the_disk_before_it_is_written(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 3)
    assert (log.end, log.written, log.flushed) == (3_000, 0, 0)
    assert disk.list(DIRECTORY) == []
    log.write()
    assert (log.end, log.written, log.flushed) == (3_000, 3_000, 0)
    log.flush()
    assert log.flushed == 3_000


def test_small_frames_gathered_together_are_one_write(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 4)
    log.write()
    assert [len(one.data) for one in disk.journal if isinstance(one, Write)] == [4_000]


def test_large_frames_among_small_ones_are_written_in_order(disk: FaultyDisk) -> None:
    log = CommitLog(disk, 2**30)
    sizes = [1_000, 1_000, 300_000, 1_000, 300_000, 300_000, 1_000]
    for size in sizes:
        append(log, 1, size)
    frames = [log.read(sum(sizes[:at]), size) for at, size in enumerate(sizes)]
    log.write()
    assert disk.snapshot() == {segment_path(0): b"".join(frames)}
    assert log.segments[0].first_at_ms == 1_000


def test_flushed_frames_survive_a_power_cut(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 6)
    log.write()
    log.flush()
    append(log, 1)
    log.write()
    assert sum(segment.size for segment in reopened(disk.crash(nothing_survives)).segments) == 6_000


def test_a_flush_covers_what_was_written_when_it_began_and_no_more(
    disk: FaultyDisk, log: CommitLog
) -> None:
    append(log)
    log.write()
    append(log)
    log.flush()
    assert log.flushed == 1_000
    assert sum(len(data) for data in disk.durable_snapshot().values()) == 1_000


def test_a_failed_flush_moves_nothing(disk: FaultyDisk, log: CommitLog) -> None:
    append(log)
    log.write()
    disk.fail_after(DiskCall.FLUSH, 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    assert log.flushed == 0


def test_a_failed_write_moves_nothing(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 2)
    disk.fail_after(DiskCall.WRITE, 0, errno.ENOSPC, short_bytes=700)
    with pytest.raises(OSError, match="No space"):
        log.write()
    assert (log.written, log.flushed) == (0, 0)


# Segments


def test_a_frame_that_does_not_fit_opens_the_next_segment(log: CommitLog) -> None:
    append(log, 9)
    log.write()
    assert starts(log) == [0, 4_000, 8_000]
    assert [segment.end for segment in log.segments] == [4_000, 8_000, 9_000]
    assert [segment.first_at_ms for segment in log.segments] == [1_000, 5_000, 9_000]


def test_segments_roll_in_the_same_places_however_frames_are_gathered(
    disk: FaultyDisk, log: CommitLog
) -> None:
    for count in (1, 2, 3, 3):
        append(log, count)
        log.write()
    assert starts(log) == [0, 4_000, 8_000]
    assert disk.list(DIRECTORY) == [segment_path(at).rpartition("/")[2] for at in starts(log)]


def test_a_segment_may_be_filled_to_its_last_byte(log: CommitLog) -> None:
    append(log, 1, SEGMENT_BYTES)
    append(log, 1, 100)
    log.write()
    assert starts(log) == [0, SEGMENT_BYTES]


def test_a_frame_larger_than_a_segment_gets_one_of_its_own(log: CommitLog) -> None:
    append(log, 1, 10_000)
    append(log, 1, 100)
    append(log, 1, 10_000)
    log.write()
    assert starts(log) == [0, 10_000, 10_100]
    assert log.read(10_100, 10_000)[:4] == b"EMQF"


def test_a_segment_has_its_name_on_the_disk_before_a_frame_goes_in(
    disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 6)
    log.write()
    kinds = [type(one) for one in disk.journal if isinstance(one, Create | FlushDirectory | Write)]
    assert kinds == [Create, FlushDirectory, Write] * 2


def test_a_flush_covers_all_segments_written_since_the_last(
    disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 9)
    log.write()
    log.flush()
    assert sum(len(data) for data in disk.durable_snapshot().values()) == 9_000


def test_the_log_goes_on_where_it_ended(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 5)
    log.write()
    log.flush()
    again = reopened(disk)
    again.begin_at(5_000)
    append(again, 4)
    again.write()
    assert starts(again) == [0, 4_000, 8_000]
    assert again.read(4_000, 1_000) == log.read(4_000, 1_000)


# Reading


def test_frames_that_are_not_written_yet_can_be_read(log: CommitLog) -> None:
    append(log, 2)
    frames = [log.read(0, FRAME_BYTES), log.read(FRAME_BYTES, FRAME_BYTES)]
    assert log.read(1_010, 20) == frames[1][10:30]
    log.write()
    append(log, 1)
    assert [log.read(0, FRAME_BYTES), log.read(FRAME_BYTES, FRAME_BYTES)] == frames
    assert log.read(2_000, 4) == b"EMQF"


@pytest.mark.parametrize("log_offset", [-1, 2_000, 2_001, 10**12])
def test_nothing_is_read_from_where_nothing_is(log: CommitLog, log_offset: int) -> None:
    append(log, 2)
    log.write()
    with pytest.raises(StoreCorrupt) as refused:
        log.read(log_offset, 1)
    assert refused.value.code == "log_offset_unknown"
    assert log.peek(log_offset, 10) == b""


def test_a_read_past_a_segments_end_is_damage(log: CommitLog) -> None:
    append(log, 5)
    log.write()
    with pytest.raises(StoreCorrupt) as refused:
        log.read(3_990, 20)
    assert refused.value.code == "log_too_short"
    assert refused.value.fields == {"segment": segment_path(0), "log_offset": 3_990}


def test_a_peek_gives_what_there_is(log: CommitLog) -> None:
    append(log, 2)
    assert log.peek(0, 4) == b"", "only what is written"
    log.write()
    assert log.peek(1_000, 4) == b"EMQF"
    assert len(log.peek(1_990, 100)) == 10
    assert log.peek(0, -5) == b""


# Deleting


def removed(disk: FaultyDisk, log: CommitLog, below: int) -> list[int]:
    """Delete segments below this offset; return where they began."""
    segments = log.forget_below(below)
    remove_segments(disk, segments)
    return [segment.start for segment in segments]


def test_only_whole_segments_below_an_offset_go(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 12)
    log.write()
    assert removed(disk, log, 3_999) == []
    assert removed(disk, log, 4_000) == [0]
    assert log.start == 4_000
    assert removed(disk, log, 7_999) == []
    assert not disk.exists(segment_path(0))
    assert log.peek(0, 4) == b""


def test_the_last_segment_stays(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 9)
    log.write()
    assert removed(disk, log, 10**9) == [0, 4_000]
    assert log.start == 8_000


def test_deletions_are_durable(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 9)
    log.write()
    log.flush()
    removed(disk, log, 8_000)
    assert disk.crash(nothing_survives).list(DIRECTORY) == [f"{8_000:020d}"]


def test_a_segment_that_is_deleted_is_not_flushed_any_more(
    disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 5)
    log.write()
    removed(disk, log, 4_000)
    log.flush()
    assert log.flushed == 5_000
    assert list(disk.durable_snapshot()) == [segment_path(4_000)]


def test_an_empty_log_starts_where_it_ends(log: CommitLog) -> None:
    assert (log.start, log.end) == (0, 0)
    log.begin_at(700)
    assert (log.start, log.end) == (700, 700)


def test_closing_gives_all_handles_back(log: CommitLog) -> None:
    append(log, 5)
    log.write()
    files = [segment.file for segment in log.segments]
    log.close()
    for file in files:
        with pytest.raises(OSError, match="Bad file"):
            file.size()


# Frame by frame


def frames_from(log: CommitLog, at: int = 0, *, end: int | None = None) -> list[int]:
    segment = log.segments[0]
    end = segment.end if end is None else end
    return [frame.log_offset for frame in read_frames(segment, SEED, from_offset=at, end=end)]


def test_frames_are_read_in_order_from_any_frame_on(log: CommitLog) -> None:
    append(log, 4)
    log.write()
    assert frames_from(log) == [0, 1_000, 2_000, 3_000]
    assert frames_from(log, 2_000) == [2_000, 3_000]
    assert frames_from(log, 4_000) == []
    assert frames_from(log, end=2_500) == [0, 1_000]


def test_reading_frames_stops_at_the_first_bad_one(disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 4)
    log.write()
    disk.flip_bit(segment_path(0), 2_500, 3)
    assert frames_from(log) == [0, 1_000]
    disk.flip_bit(segment_path(0), 0, 0)
    assert frames_from(log) == []


def test_frames_are_read_across_blocks_and_longer_than_one(disk: FaultyDisk) -> None:
    log = CommitLog(disk, 2**30)
    large = 5 * 1024 * 1024
    for size in (3_000_000, 3_000_000, large, 60):
        append(log, 1, size)
    log.write()
    whole = [0, 3_000_000, 6_000_000, 6_000_000 + large]
    assert frames_from(log) == whole
    # Damage the large frame in its second block, then cut it short.
    disk.flip_bit(segment_path(0), 6_000_000 + large - 1, 0)
    assert frames_from(log) == whole[:2]
    assert frames_from(log, 6_000_000, end=6_000_000 + large - 1) == []
